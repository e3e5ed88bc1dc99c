"""The report's content as sections of text and tables, shown by the terminal and by Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from rltrace.analysis.stages import StageRow
from rltrace.analysis.staleness import LagBar
from rltrace.analysis.summary import Summary
from rltrace.analysis.syncs import Syncs
from rltrace.analysis.tail import Tail
from rltrace.report import units
from rltrace.report.coverage_section import coverage_section
from rltrace.report.goodput_section import goodput_section
from rltrace.report.layout import Column, Grid, Section, bar, listed
from rltrace.report.own_figures_section import own_figures_section, pointer
from rltrace.report.probe_section import probe_section

_LAG_BAR = 24
_MOST_LAGS = 12
_MOST_STEPS = 6
_SMALL_REST = 0.01


def sections(summary: Summary, own_figures: bool = False) -> Iterator[Section]:
    """All sections after the verdict, in the order in which they are read; with `own_figures` that
    on what the framework itself logs."""
    yield _stages(summary, () if own_figures else pointer(summary))
    if summary.probe is not None:
        yield probe_section(summary.probe)
    if own_figures:
        yield own_figures_section(summary)
    if _has_tail(summary.tail):
        yield _tail(summary)
    if summary.staleness.trajectories:
        yield _staleness(summary)
    if summary.syncs is not None:
        yield _syncs(summary)
    yield goodput_section(summary)
    yield coverage_section(summary)


def _stages(summary: Summary, more_notes: Iterable[str]) -> Section:
    steps = summary.steps
    what = "the whole run" if steps.whole_run else units.plural(steps.steady, "steady step")
    window, held = ("window", "run") if steps.whole_run else ("step", "step")
    scale = units.scale(steps.step_s.mean)
    rows = [_stage_cells(row, scale.show) for row in summary.stages]
    if steps.step_s.n:
        idle, step = steps.unattributed_s, steps.step_s
        cells = [scale.show(v) for v in (idle.mean, idle.p50, idle.p95, idle.mean)]
        rows.append(("unattributed", "", *cells, "", units.share(steps.unattributed_share)))
        cells = [scale.show(v) for v in (step.mean, step.p50, step.p95, step.mean)]
        rows.append((window, "τ_step", *cells, "", "100 %"))
    columns = (
        Column(f"stage, {scale.unit}"),
        Column("τ"),
        Column("mean", right=True),
        Column("p50", right=True, least_width=76),
        Column("p95", right=True),
        Column("exposed", right=True),
        Column("hidden", right=True, least_width=68),
        Column("share", right=True),
    )
    return Section(
        title="Where the step goes" if not steps.whole_run else "Where the time goes",
        lines=tuple(_step_lines(summary)) if rows else ("No span of any stage was recorded.",),
        grid=Grid(columns, tuple(rows)) if rows else None,
        notes=(
            f"Means over {what}. exposed: only this stage held the {held} up; hidden: it ran "
            f"under a longer chain. Exposed and unattributed add up to the {window}.",
            *_composition(summary),
            *_waits(summary),
            *more_notes,
        )
        if rows
        else (),
    )


def _stage_cells(row: StageRow, show: Callable[[float], str]) -> tuple[str, ...]:
    tau = row.tau_s
    times = (tau.mean, tau.p50, tau.p95, row.exposed_s.mean, row.hidden_s.mean)
    return (row.name, row.symbol, *map(show, times), units.share(row.share))


def _step_lines(summary: Summary) -> Iterator[str]:
    steps = summary.steps
    if steps.whole_run:
        yield "No step was recorded: the whole run is shown as one window."
        return
    step_s = steps.step_s
    interval = (
        f", 95 % interval {units.seconds(max(0.0, step_s.low))} to {units.seconds(step_s.high)}"
        if step_s.n > 1
        else ""
    )
    yield f"{units.seconds(step_s.mean)} a step{interval} (n = {step_s.n})."
    if steps.warmup:
        slow = [time.seconds for time in steps.times if time.warmup]
        which = f"the first {len(slow)} steps"
        if len(slow) <= _MOST_STEPS:
            which = f"step{'s' * (len(slow) > 1)} {listed([str(n) for n in steps.warmup])}"
        mean = " in the mean" if len(slow) > 1 else ""
        yield f"Warm-up, left out: {which} ({units.seconds(sum(slow) / len(slow))}{mean})."
    if steps.between_s > 0.01 * step_s.mean * step_s.n:
        yield f"{units.seconds(steps.between_s)} more passed between steps."
    if steps.repeated:
        yield f"{units.plural(steps.repeated, 'step')} came again (a restart)."


def _composition(summary: Summary) -> Iterator[str]:
    composed = summary.composition
    if composed is None:
        return
    how = f"{composed.placement} ({composed.placement_source})"
    if not composed.formula:
        yield (
            f"{how}: the stages run at once in part, so that no formula composes the step: their "
            f"times add up to {units.seconds(composed.stages_s)} and cover "
            f"{units.seconds(composed.covered_s)} of {units.seconds(composed.measured_s)}."
        )
        return
    united = "; ∪: they run at once in part, which counts once" if "∪" in composed.formula else ""
    yield (
        f"{how}: {composed.formula} = "
        f"{units.seconds(composed.composed_s)}, measured {units.seconds(composed.measured_s)}, "
        f"difference {units.seconds(composed.difference_s)} "
        f"({units.share(composed.difference_share)}){united}."
    )


def _waits(summary: Summary) -> Iterator[str]:
    for wait in summary.waits:
        who = units.plural(wait.processes, wait.role or "process")
        yield (
            f"wait: {who} blocked on “{wait.name}” for {units.share(wait.share)} of the time "
            f"({units.plural(wait.spans, 'time')})."
        )


def _has_tail(tail: Tail) -> bool:
    verdicts = tail.verdict_s.n or tail.verdicts_untimed
    return bool(tail.latency_s.n or tail.unended or verdicts)


def _tail(summary: Summary) -> Section:
    tail = summary.tail
    rows = []
    for name, spread, show in (
        ("response tokens", tail.response_tokens, units.count),
        ("latency", tail.latency_s, units.seconds),
        ("to first token", tail.first_token_s, units.seconds),
        ("verdict latency", tail.verdict_s, units.seconds),
    ):
        if spread.n:
            numbers = [show(v) for v in (spread.p50, spread.p95, spread.p99, spread.largest)]
            rows.append((name, *numbers, units.ratio(spread.tail_ratio), units.count(spread.n)))
    columns = (
        Column("trajectories"),
        Column("p50", right=True),
        Column("p95", right=True),
        Column("p99", right=True),
        Column("max", right=True, least_width=76),
        Column("p95/p50", right=True),
        Column("n", right=True, least_width=68),
    )
    known = [(word, n) for word, n in tail.finishes if word != "unknown"]
    notes = []
    if known:
        notes.append("ended by " + ", ".join(f"{word} {units.count(n)}" for word, n in known) + ".")
    if tail.unended:
        notes.append(f"{units.count(tail.unended)} more began and never ended.")
    if tail.verdicts_untimed:
        verdicts = units.plural(tail.verdicts_untimed, "verdict")
        notes.append(f"{verdicts} recorded without a duration.")
    if tail.verdict_failures:
        notes.append(f"{units.plural(tail.verdict_failures, 'verdict')} timed out or failed.")
    return Section("Tail", grid=Grid(columns, tuple(rows)) if rows else None, notes=tuple(notes))


def _staleness(summary: Summary) -> Section:
    lags = summary.staleness
    bars = _lag_bars(lags.by_first_token)
    largest = max(trajectories for _, trajectories, _ in bars)
    all_tokens = sum(tokens for _, _, tokens in bars)
    rows = tuple(
        (
            label,
            bar(trajectories / largest, _LAG_BAR),
            units.count(trajectories),
            units.share(trajectories / lags.trajectories),
            units.share(tokens / all_tokens) if all_tokens else units.UNKNOWN,
        )
        for label, trajectories, tokens in bars
    )
    columns = (
        Column("lag", right=True),
        Column("", least_width=68),
        Column("trajectories", right=True),
        Column("share", right=True),
        Column("of tokens", right=True),
    )
    if lags.known:
        line = (
            f"mean lag {units.number(lags.mean_lag)} {lags.unit} "
            f"({units.number(lags.token_weighted_lag)} weighted by tokens), "
            f"p95 {lags.p95_lag:.0f}, largest {lags.largest_lag}."
        )
    else:
        line = "Nobody recorded which policy version generated or trained on these samples."
    notes = ["Lag: version that trained minus version of the first token; unknown is not zero."]
    if lags.versions_known:
        notes.append(f"{units.share(lags.mixed_share)} of trajectories saw a version change.")
    if lags.mean_lag and not math.isnan(lags.mean_in_queue):
        notes.append(
            f"Mean lag in flight (first to last token) {units.number(lags.mean_in_flight)}, "
            f"in the queue (last token to training) {units.number(lags.mean_in_queue)}."
        )
    return Section("Staleness of what was trained on", (line,), Grid(columns, rows), tuple(notes))


def _lag_bars(bars: tuple[LagBar, ...]) -> list[tuple[str, int, int]]:
    """`(lag, trajectories, tokens)`; lags are put together in ranges where there are many."""
    known = [b.lag for b in bars if b.lag is not None]
    wide = -(-(max(known) - min(known) + 1) // _MOST_LAGS) if known else 1
    shown: dict[str, tuple[int, int]] = {}
    for one in bars:
        label = "unknown"
        if one.lag is not None:
            first = min(known) + (one.lag - min(known)) // wide * wide
            label = str(first) if wide == 1 else f"{first} to {first + wide - 1}"
        before = shown.get(label, (0, 0))
        shown[label] = (before[0] + one.trajectories, before[1] + one.tokens)
    return [(label, n, tokens) for label, (n, tokens) in shown.items()]


def _syncs(summary: Summary) -> Section:
    syncs = summary.syncs
    assert syncs is not None
    rows = tuple(
        (
            role.role,
            str(role.processes),
            units.size(role.bytes.mean),
            units.seconds(role.seconds.mean),
            units.number(role.gb_per_s),
            units.seconds(role.stall_s.mean),
            units.seconds(role.seconds.p50),
            units.seconds(role.seconds.p95),
        )
        for role in syncs.participants
    )
    columns = (
        Column("role"),
        Column("processes", right=True, least_width=76),
        Column("bytes", right=True),
        Column("seconds", right=True),
        Column("GB/s", right=True),
        Column("stall", right=True),
        Column("p50", right=True, least_width=76),
        Column("p95", right=True, least_width=68),
    )
    return Section(
        "Weight movement",
        tuple(_update_lines(syncs)),
        Grid(columns, rows),
        tuple(_sync_notes(syncs)),
    )


def _update_lines(syncs: Syncs) -> Iterator[str]:
    updates = units.plural(syncs.updates, "update")
    if not syncs.updates:
        yield f"{units.plural(syncs.recorded, 'update')} recorded, none within the steady steps."
        return
    size, seconds = syncs.bytes_per_update, syncs.update_s.mean
    line = f"{updates}: {units.seconds(seconds)} each in the mean"
    if size.n:
        some = "" if size.n == syncs.updates else f" (known of {units.count(size.n)})"
        line += f", {units.size(size.mean)}{some}, {units.number(syncs.gb_per_s)} GB/s"
    if syncs.transports:
        line += f", by {' and '.join(syncs.transports)}"
    yield f"{line}."
    if syncs.phases:
        parts = [f"{name} {units.seconds(spent.mean)}" for name, spent in syncs.phases]
        rest_s = seconds - sum(spent.mean for _, spent in syncs.phases)
        if rest_s > _SMALL_REST * seconds:
            parts.append(f"in no phase {units.seconds(rest_s)}")
        yield f"of which {', '.join(parts)}."


def _sync_notes(syncs: Syncs) -> Iterator[str]:
    if not syncs.updates:
        return
    left_out = syncs.recorded - syncs.updates
    also = f" ({units.count(left_out)} more began outside of the steady steps)" if left_out else ""
    phases = "; an instant at which several phases run counts for the first of them"
    yield (
        f"An update lasts while any process is at work on it{phases if syncs.phases else ''}{also}."
    )
    yield (
        "Table: one participant in one update, means; GB/s = bytes / seconds; stall: how long its "
        "other work stood still."
    )
