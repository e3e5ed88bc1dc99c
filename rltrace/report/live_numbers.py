"""The first lines of the live view: the step, and the figures that matter most."""

from __future__ import annotations

import math

from rich.text import Text

from rltrace.analysis.live.snapshot import Snapshot, Window
from rltrace.report import units
from rltrace.report.live_line import step_name

_SEPARATOR = " · "
_LATE = 1.5  # a step that lasts this many times the usual one is told


def step_line(shown: Snapshot, width: int) -> Text:
    """The step that is going on, and how long the last ones took."""
    step, window = shown.step, shown.window
    if shown.dropped is not None:
        done = units.plural(shown.totals.steps, "whole step")
    else:
        done = f"{units.plural(shown.totals.steps, 'step')} done"
    if window is not None:
        done += f", {units.seconds(window.step_s)} each "
    if step is None:
        line = Text(done, style="bold")
    elif shown.job.is_over:
        line = Text(f"{step_name(step)} was cut off after {units.seconds(step.elapsed_s)}", "bold")
        line.append(f"   {done}", style="not bold")
    else:
        line = Text(f"{step_name(step)}  ", style="bold")
        part = step.elapsed_s / step.usual_s if step.usual_s else math.nan
        if math.isnan(part):
            line.append(f"{units.seconds(step.elapsed_s)} so far", style="not bold")
        else:
            cells = max(8, min(24, width - 56))
            line.append_text(bar(min(1.0, part), 0.0, cells, "green" if part < _LATE else "yellow"))
            line.append(f" {units.seconds(step.elapsed_s)}", style="not bold")
            if part >= _LATE:
                line.append(f", {part:.1f}× the usual", style="bold yellow")
        line.append(f"   {done}", style="not bold")
    if window is not None:
        line.append(sparks([one.step_s for one in window.recent]), style="not bold cyan")
    return line


def figures(shown: Snapshot, width: int) -> list[Text]:
    """Tokens, freshness, weights: one line each, where anything is known."""
    window = shown.window
    if window is None:
        lines = {"so far": _so_far(shown)}
    else:
        lines = {
            "tokens/s": _tokens(shown, window),
            "samples": _samples(shown, window),
            "weights": _weights(window),
        }
    lines["devices"] = _machines(shown)
    return [_fitted(name, parts, width) for name, parts in lines.items() if parts]


def _so_far(shown: Snapshot) -> list[str]:
    totals = shown.totals
    parts = [f"{units.plural(shown.processes, 'process')} traced"]
    if totals.generated_samples:
        parts.append(f"{units.plural(totals.generated_samples, 'sample')} generated")
    if totals.generated_tokens:
        parts.append(units.plural(totals.generated_tokens, "token"))
    if shown.in_flight:
        parts.append(f"{units.count(shown.in_flight)} in flight")
    return parts


def _tokens(shown: Snapshot, window: Window) -> list[str]:
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
    return parts


def _samples(shown: Snapshot, window: Window) -> list[str]:
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
        p50, p95 = units.seconds(window.latency_p50_s), units.seconds(window.latency_p95_s)
        parts.append(f"latency p50 {p50}, p95 {p95}")
    return parts


def _weights(window: Window) -> list[str]:
    updates = window.updates
    if updates is None:
        return []
    parts = [f"version {updates.latest_version}"] if updates.latest_version >= 0 else []
    parts += [f"{units.number(updates.per_minute)} a minute", units.seconds(updates.update_s)]
    if not math.isnan(updates.bytes):
        parts.append(units.size(updates.bytes))
    if not math.isnan(updates.bytes_per_s):
        parts.append(f"{units.size(updates.bytes_per_s)}/s")
    return parts


def _machines(shown: Snapshot) -> list[str]:
    by_counter: dict[str, list[float]] = {}
    for reading in shown.readings:
        by_counter.setdefault(reading.counter, []).append(reading.value)
    parts = []
    if gpus := by_counter.get("gpu/busy_percent"):
        busy = units.share(sum(gpus) / len(gpus) / 100)
        parts.append(f"{units.plural(len(gpus), 'GPU')} {busy} busy")
    used, total = (sum(by_counter.get(f"gpu/memory_{k}_bytes", [])) for k in ("used", "total"))
    if total:
        parts.append(f"{units.size(used)} of {units.size(total)}")
    if power := by_counter.get("gpu/power_watts"):
        parts.append(f"{sum(power):,.0f} W")
    cores = [r.per_s for r in shown.readings if r.counter == "host/cpu_busy_seconds"]
    if cores and not math.isnan(sum(cores)):
        # All that runs there, the job or not: which is why it says whose they are.
        where = "machine" if len(cores) == 1 else f"{len(cores)} machines"
        parts.append(f"{where}: {units.number(sum(cores))} cores busy")
    if free := by_counter.get("host/memory_available_bytes"):
        parts.append(f"{units.size(sum(free))} of memory free")
    return parts


def _rate(value: float) -> str:
    return units.count(round(value)) if value >= 100 else units.number(value)


def _fitted(name: str, parts: list[str], width: int) -> Text:
    """As many of the parts as there is room for."""
    while len(parts) > 1 and 10 + len(_SEPARATOR.join(parts)) > width:
        parts = parts[:-1]
    line = Text(f"{name:<10}", style="bold")
    return line.append(_SEPARATOR.join(parts), style="not bold")


# --- bars and columns of characters

_FULL, _SOFT, _EMPTY = "█", "▒", "·"
_SPARKS = "▁▂▃▄▅▆▇█"


def bar(full: float, soft: float, cells: int, style: str) -> Text:
    """`cells` characters for a whole: `full` of it strong, `soft` pale, the rest empty."""
    strong = min(cells, round(full * cells))
    pale = min(cells, round((full + soft) * cells)) - strong
    if full > 0 and not strong and not pale:
        pale = 1
    line = Text(_FULL * strong, style=style)
    line.append(_SOFT * pale, style=style)
    line.append(_EMPTY * (cells - strong - pale), style="dim")
    return line


def sparks(values: list[float]) -> str:
    """A column for each value, the largest full."""
    most = max(values, default=0)
    if len(values) < 2 or not most:
        return ""
    return " " + "".join(_SPARKS[min(7, int(8 * value / most))] for value in values)
