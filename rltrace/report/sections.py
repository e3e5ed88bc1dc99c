"""The report's content as sections of text and tables, shown by the terminal and by Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rltrace.analysis.summary import StepsSummary, Summary
from rltrace.analysis.syncs import Syncs
from rltrace.report import units
from rltrace.report.coverage_section import coverage_section
from rltrace.report.freshness_section import curve_section, staleness_section
from rltrace.report.goodput_section import cascade_section, goodput_section, reward_section
from rltrace.report.layout import Section, listed, numbers, table
from rltrace.report.own_figures_section import own_figures_section, pointer
from rltrace.report.probe_section import probe_section
from rltrace.report.tail_section import has_tail, tail_section
from rltrace.report.verdict import judged_steps, path_lines
from rltrace.report.walls_section import fixes_section, walls_section

_MOST_STEPS = 6
_SMALL_REST = 0.01


def sections(summary: Summary, own_figures: bool = False) -> Iterator[Section]:
    """All sections after the verdict, in the order in which they are read; with `own_figures` that
    on what the framework itself logs."""
    fixes = fixes_section(summary.verdict)
    if fixes is not None:
        yield fixes
    yield walls_section(summary.verdict)
    yield stages_section(summary, () if own_figures else pointer(summary))
    if summary.probe is not None:
        yield probe_section(summary.probe)
    if own_figures:
        yield own_figures_section(summary)
    if has_tail(summary.tail):
        yield tail_section(summary.tail)
    if summary.staleness.trajectories:
        handed_only = summary.goodput is not None and summary.goodput.handed_only
        yield staleness_section(summary.staleness, summary.freshness, handed_only)
        if summary.staleness.largest_lag != 0:
            yield curve_section(summary.freshness)
    if summary.syncs is not None:
        yield syncs_section(summary)
    yield goodput_section(summary)
    if summary.cascade is not None:
        yield cascade_section(summary.cascade)
    if summary.reward is not None:
        yield reward_section(summary.reward, summary.signal)
    yield coverage_section(summary)


def stages_section(summary: Summary, more_notes: Iterable[str] = ()) -> Section:
    """Where the step goes, stage by stage; `more_notes` stand below the others."""
    steps = summary.steps
    what = "the whole run" if steps.whole_run else units.plural(steps.steady, "steady step")
    window, held = ("window", "run") if steps.whole_run else ("step", "step")
    scale = units.scale(steps.step_s.mean)
    rows: list[tuple[str, ...]] = []
    for row in summary.stages:
        tau, exposed, hidden = row.tau_s, row.exposed_s.mean, row.overlapped_s.mean
        cells = map(scale.show, (tau.mean, tau.p50, tau.p95, exposed, hidden))
        rows.append((row.name, row.symbol, *cells, units.share(row.share)))
    for name, symbol, spread, share in (
        ("untraced", "", steps.untraced_s, units.share(steps.untraced_share)),
        (window, "τ_step", steps.step_s, "100 %"),
    ):
        if steps.step_s.n and spread.n:
            times = (spread.mean, spread.p50, spread.p95, spread.mean)
            rows.append((name, symbol, *map(scale.show, times), "", share))
    title = "Where the time goes" if steps.whole_run else "Where the step goes"
    if not rows:
        return Section(title, ("No span of any stage was recorded.",))
    composed, of_both = summary.composition, ""
    placed = [f"{composed.placement} ({composed.placement_source})."] if composed else []
    if composed is not None and composed.beside:
        of_both = ", or for it and others, where both sides are always at work"
    figures = numbers("mean", ("p50", 76), "p95", "exposed", ("overlapped", 68), "share")
    return Section(
        title,
        tuple(_step_lines(summary)),
        table(rows, f"stage, {scale.unit}", "τ", *figures),
        (
            f"Means over {what}. exposed: the {held} waited for this stage alone{of_both}; "
            "overlapped: it ran under a longer chain. "
            f"Exposed and untraced add up to the {window}.",
            *placed,
            *path_lines(summary.critical_path),
            *_waits(summary),
            *more_notes,
        ),
    )


def _step_lines(summary: Summary) -> Iterator[str]:
    steps = summary.steps
    if steps.whole_run:
        yield "No complete step was recorded: the whole run is shown as one window."
        return
    step_s = steps.step_s
    interval = (
        f", 95 % interval {units.seconds(max(0.0, step_s.low))} to {units.seconds(step_s.high)}"
        if step_s.n > 1 and not summary.run.steps_are_means  # which would be too narrow
        else ""
    )
    yield f"{units.seconds(step_s.mean)} a step{interval} (n = {step_s.n})."
    if steps.warmup:
        slow = [time.step_s for time in steps.times if time.warmup]
        which = f"the first {len(slow)} steps"
        if len(slow) <= _MOST_STEPS:
            which = f"step{'s' * (len(slow) > 1)} {_first_few(steps.warmup)}"
        mean = " in the mean" if len(slow) > 1 else ""
        yield f"Warm-up, left out: {which} ({units.seconds(sum(slow) / len(slow))}{mean})."
    if steps.stalled:
        yield (
            f"All figures of steps are of {judged_steps(steps)} (left out: "
            f"{_first_few(steps.stalled)})."
        )
    yield from _whole_generations(steps)
    if steps.between_steps_s > 0.01 * step_s.mean * step_s.n:
        yield f"{units.seconds(steps.between_steps_s)} more passed between steps."
    if steps.repeated:
        yield f"{units.plural(steps.repeated, 'step')} came again (a restart)."


def _first_few(steps: Sequence[int]) -> str:
    more = " and more" * (len(steps) > _MOST_STEPS)
    return listed([str(number) for number in steps[:_MOST_STEPS]]) + more


def _whole_generations(steps: StepsSummary) -> Iterator[str]:
    """Where one generation serves several steps, which of them the figures are of."""
    if not steps.steps_per_generation:
        return
    serves = f"One generation serves {steps.steps_per_generation} steps"
    if not steps.generations:
        yield (
            f"{serves}, and no whole one is left: figures are of a part of a generation's steps, "
            "and have too much or too little of generation."
        )
        return
    steady = [time.step for time in steps.times if time.steady]
    generations = units.plural(steps.generations, "generation")
    out = ""
    if steps.left_out:
        out = f" (left out, part of a generation's steps: {_first_few(steps.left_out)})"
    yield (
        f"{serves}: figures are of whole ones, steps {steady[0]} to {steady[-1]}, "
        f"{generations}{out}."
    )


def _waits(summary: Summary) -> Iterator[str]:
    for wait in summary.waits:
        who, each = units.plural(wait.processes, wait.role or "process"), ""
        if wait.threads > wait.processes:
            who, each = f"{who} in {wait.threads} threads or tasks", " each"
        yield (
            f"wait: {who} blocked on “{wait.name}” for {units.share(wait.share)} of the time{each} "
            f"({units.plural(wait.spans, 'time')})."
        )


def syncs_section(summary: Summary) -> Section:
    """Weight sync, of a run that recorded updates."""
    syncs = summary.syncs
    assert syncs is not None
    rows = (
        (
            role.role,
            str(role.processes),
            units.size(role.bytes.mean),
            units.seconds(role.update_s.mean),
            units.number(role.bytes_per_s / 1e9),
            units.seconds(role.stall_s.mean),
            units.seconds(role.update_s.p50),
            units.seconds(role.update_s.p95),
        )
        for role in syncs.participants
    )
    columns = numbers(
        *(("processes", 76), "bytes", "seconds", "GB/s", "stall", ("p50", 76), ("p95", 68))
    )
    return Section("Weight sync", tuple(_update_lines(syncs)), table(rows, "role", *columns))


def _update_lines(syncs: Syncs) -> Iterator[str]:
    if not syncs.updates:
        yield f"{syncs.recorded_updates} updates recorded, none within the steady steps."
        return
    size, seconds = syncs.bytes_per_update, syncs.update_s.mean
    line = f"{units.plural(syncs.updates, 'update')}: {units.seconds(seconds)} each in the mean"
    if size.n:
        some = "" if size.n == syncs.updates else f" (known of {units.count(size.n)})"
        line += f", {units.size(size.mean)}{some}, {units.size(syncs.bytes_per_s)}/s"
    if syncs.transports:
        line += f", by {' and '.join(syncs.transports)}"
    yield f"{line}."
    if syncs.phases_s:
        parts = [f"{name} {units.seconds(spent.mean)}" for name, spent in syncs.phases_s]
        rest_s = seconds - sum(spent.mean for _, spent in syncs.phases_s)
        if rest_s > _SMALL_REST * seconds:
            parts.append(f"in no phase {units.seconds(rest_s)}")
        yield f"of which {', '.join(parts)}."
