"""The first lines of the live view: the step, and the figures that matter most."""

from __future__ import annotations

import math

from rich.text import Text

from rltrace.analysis.live.snapshot import Snapshot, StepNow, Window
from rltrace.report import units
from rltrace.report.live_blocks import Block, bar, sparks

_SEPARATOR = " · "
_LATE = 1.5  # a step that lasts this many times the usual one is told
_MEMORY = ("used", "total")


def step_line(shown: Snapshot, width: int) -> Text:
    """The step that is going on, and how long the last ones took."""
    step, window = shown.step, shown.window
    lost = shown.dropped is not None
    done = units.plural(shown.totals.steps, "whole step" if lost else "step")
    done += "" if lost else " done"
    if window is not None and window.steps:
        done += f", {units.seconds(window.step_s)} each "
    if step is None:
        line = Text(done, style="bold")
    elif shown.job.is_over:
        line = Text(f"{_named(step)} was cut off after {units.seconds(step.seconds)}", "bold")
        line.append(f"   {done}", style="not bold")
    else:
        line = Text(f"{_named(step)}  ", style="bold")
        part = step.seconds / step.usual_s if step.usual_s else math.nan
        if math.isnan(part):
            line.append(f"{units.seconds(step.seconds)} so far", style="not bold")
        else:
            cells = max(8, min(24, width - 56))
            line.append_text(bar(min(1.0, part), 0.0, cells, "green" if part < _LATE else "yellow"))
            line.append(f" {units.seconds(step.seconds)}", style="not bold")
            if part >= _LATE:
                line.append(f", {part:.1f}× the usual", style="bold yellow")
        line.append(f"   {done}", style="not bold")
    if window is not None:
        line.append(sparks([one.seconds for one in window.recent]), style="not bold cyan")
    return line


def _named(step: StepNow) -> str:
    return f"step {step.step}" if step.step >= 0 else "a step"


def figures(shown: Snapshot, width: int) -> Block:
    """Tokens, freshness, weights: one line each, where anything is known."""
    window = shown.window
    lines = []
    if window is None:
        lines += [_so_far(shown)]
    else:
        lines += [_tokens(shown, window), _samples(shown, window), _weights(window)]
    lines += [_machines(shown)]
    return Block(None, [_fitted(name, parts, width) for name, parts in lines if parts])


def _so_far(shown: Snapshot) -> tuple[str, list[str]]:
    """There is no complete step yet."""
    totals = shown.totals
    parts = [f"{units.plural(shown.processes, 'process')} traced"]
    if totals.generated_samples:
        parts.append(f"{units.plural(totals.generated_samples, 'sample')} generated")
    if totals.generated_tokens:
        parts.append(units.plural(totals.generated_tokens, "token"))
    if shown.in_flight:
        parts.append(f"{units.count(shown.in_flight)} in flight")
    return "so far", parts


def _tokens(shown: Snapshot, window: Window) -> tuple[str, list[str]]:
    parts = []
    if window.generated_tokens:
        parts.append(f"{_rate(window.generated_tokens_per_s)} generated")
    if window.trained is not None and window.trained.tokens:
        parts.append(f"{_rate(window.trained_tokens_per_s)} trained on")
        share = units.share(window.trained.useful_tokens / window.trained.tokens)
        if math.isnan(shown.goodput):
            parts.append(f"{share} of that useful")
        else:
            parts.append(f"{_rate(shown.goodput)} useful a {shown.devices.kind} ({share})")
    return "tokens/s", parts


def _samples(shown: Snapshot, window: Window) -> tuple[str, list[str]]:
    parts = []
    lags = window.lags
    if lags is not None and not math.isnan(lags.mean):
        parts.append(f"lag {units.number(lags.mean)} (p95 {lags.p95:.0f}, most {lags.largest})")
    if shown.queue is not None and not shown.job.is_over:
        parts.append(f"{units.count(shown.queue)} wait for the learner")
    if shown.in_flight:
        parts.append(f"{units.count(shown.in_flight)} in flight")
        if shown.waiting_for_first_token and shown.waiting_for_first_token < shown.in_flight:
            parts.append(f"{units.count(shown.waiting_for_first_token)} without a token yet")
    if not math.isnan(window.latency_p95_s):
        quantiles = (units.seconds(s) for s in (window.latency_p50_s, window.latency_p95_s))
        parts.append(f"latency p50 {next(quantiles)}, p95 {next(quantiles)}")
    return "samples", parts


def _weights(window: Window) -> tuple[str, list[str]]:
    updates = window.updates
    if updates is None:
        return "weights", []
    parts = [f"version {updates.latest_version}"] if updates.latest_version >= 0 else []
    parts += [f"{units.number(updates.per_minute)} a minute", units.seconds(updates.seconds)]
    if not math.isnan(updates.bytes):
        parts.append(units.size(updates.bytes))
    if not math.isnan(updates.gb_per_s):
        parts.append(f"{units.number(updates.gb_per_s)} GB/s")
    return "weights", parts


def _machines(shown: Snapshot) -> tuple[str, list[str]]:
    """All devices and nodes together."""
    by_counter: dict[str, list[float]] = {}
    for reading in shown.readings:
        by_counter.setdefault(reading.counter, []).append(reading.value)
    parts = []
    gpus = by_counter.get("gpu/busy_percent", [])
    if gpus:
        busy = units.share(sum(gpus) / len(gpus) / 100)
        parts.append(f"{units.plural(len(gpus), 'GPU')} {busy} busy")
    used, total = (sum(by_counter.get(f"gpu/memory_{kind}_bytes", [])) for kind in _MEMORY)
    if total:
        parts.append(f"{units.size(used)} of {units.size(total)}")
    if "gpu/power_watts" in by_counter:
        parts.append(f"{sum(by_counter['gpu/power_watts']):,.0f} W")
    cores = [r.per_s for r in shown.readings if r.counter == "host/cpu_busy_seconds"]
    if cores and not math.isnan(sum(cores)):
        # All that runs there, the job or not: which is why it says whose they are.
        where = "machine" if len(cores) == 1 else f"{len(cores)} machines"
        parts.append(f"{where}: {units.number(sum(cores))} cores busy")
    if "host/memory_available_bytes" in by_counter:
        free = sum(by_counter["host/memory_available_bytes"])
        parts.append(f"{units.size(free)} of memory free")
    return "devices", parts


def _rate(value: float) -> str:
    return units.count(round(value)) if value >= 100 else units.number(value)


def _fitted(name: str, parts: list[str], width: int) -> Text:
    """As many of the parts as there is room for."""
    while len(parts) > 1 and 10 + len(_SEPARATOR.join(parts)) > width:
        parts = parts[:-1]
    line = Text(f"{name:<10}", style="bold")
    line.append(_SEPARATOR.join(parts), style="not bold")
    line.truncate(width, overflow="ellipsis")
    return line
