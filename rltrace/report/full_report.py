"""The full report as sections, in the order of a reader's questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from rltrace.analysis.figures.weight_updates import Syncs
from rltrace.analysis.summary import StepsSummary, Summary
from rltrace.analysis.timeline.critical_path import UNKNOWN, CriticalPath
from rltrace.report import units
from rltrace.report.layout import Section, listed, numbers, table
from rltrace.report.sections import evidence_sections as evidence
from rltrace.report.sections import sample_sections as freshness
from rltrace.report.sections.goodput_section import cascade_section, goodput_section, reward_section
from rltrace.report.sections.verdict_section import fixes_section, tried_run, walls_section
from rltrace.trace.untrusted_files import packaged_toml

STAGES = "Stages"  # title of the section on where a step goes
_MOST_STEPS = 6
_SMALL_REST = 0.01
_APART = 0.05  # shares that differ by more than this are worth a line
_SMALL = 0.005
_TOO_LITTLE = 0.5  # explained: the path says less than the table


def sections(summary: Summary, own_figures: bool = False) -> Iterator[tuple[str, list[Section]]]:
    """`(question, its sections)`; with `own_figures` that on what the framework itself logs."""
    tail, lags, fresh = summary.tail, summary.staleness, summary.freshness
    handed_only = summary.goodput is not None and summary.goodput.handed_only
    asked: dict[str, list[Section | None]] = {
        "What binds?": [
            walls_section(summary.verdict),
            evidence.probe_section(summary.probe) if summary.probe else None,
        ],
        "Where do time and tokens go?": [
            stages_section(summary, () if own_figures else evidence.pointer(summary)),
            evidence.own_figures_section(summary) if own_figures else None,
            syncs_section(summary) if summary.syncs else None,
            goodput_section(summary),
            cascade_section(summary.cascade) if summary.cascade else None,
        ],
        "What to change?": [fixes_section(summary.verdict, tried_run(summary))],
        "Is the data good?": [
            freshness.tail_section(tail) if freshness.has_tail(tail) else None,
            freshness.staleness_section(lags, handed_only) if lags.trajectories else None,
            freshness.curve_section(fresh) if lags.trajectories and lags.largest_lag else None,
            freshness.gaps_section(summary.engine_gaps) if lags.known_trajectories else None,
            reward_section(summary.reward, summary.signal) if summary.reward else None,
        ],
        "Can I believe it?": [evidence.coverage_section(summary)],
    }
    shown = {question: [part for part in parts if part] for question, parts in asked.items()}
    titles = {part.title for parts in shown.values() for part in parts}
    yield from ((question, parts) for question, parts in shown.items() if parts)
    meant = (f"{name}: {meaning}" for name, meaning, of in _words() if titles & of)
    yield "Words", [Section("", tuple(meant))]


@cache
def _words() -> tuple[tuple[str, str, frozenset[str]], ...]:
    """`(word, meaning, titles of the sections that use it)` of each that needs a definition."""
    words = packaged_toml("report/words.toml")["word"]
    return tuple((one["name"], one["is"], frozenset(one["parts"])) for one in words)


def stages_section(summary: Summary, more_notes: Iterable[str] = ()) -> Section:
    """Where the step goes, stage by stage; `more_notes` stand below the others."""
    steps = summary.steps
    what = "the whole run" if steps.whole_run else units.plural(steps.steady, "steady step")
    window = "window" if steps.whole_run else "step"
    scale = units.scale(steps.step_s.mean)
    rows: list[tuple[str, ...]] = []
    for row in summary.stages:
        tau = row.tau_s.mean, row.tau_s.p50, row.tau_s.p95
        cells = map(scale.show, (*tau, row.exposed_s.mean, row.overlapped_s.mean))
        rows.append((row.name, row.symbol, *cells, units.share(row.share)))
    for name, symbol, spread, share in (
        ("untraced", "", steps.untraced_s, units.share(steps.untraced_share)),
        (window, "τ_step", steps.step_s, "100 %"),
    ):
        if steps.step_s.n and spread.n:
            times = (spread.mean, spread.p50, spread.p95, spread.mean)
            rows.append((name, symbol, *map(scale.show, times), "", share))
    if not rows:
        return Section(STAGES, ("No span of any stage was recorded.",))
    composed = summary.composition
    notes = [f"Means of {what}."]
    if composed is not None:
        notes = [f"{notes[0][:-1]}; placement {composed.placement} ({composed.placement_source})."]
        both = "Both sides work all the time: exposed is also what a stage shares with others."
        notes += [both] * bool(composed.beside)
    figures = numbers("mean", ("p50", 76), "p95", "exposed", ("overlapped", 68), "share")
    return Section(
        STAGES,
        tuple(_step_lines(summary)),
        table(rows, f"stage, {scale.unit}", "τ", *figures),
        (*notes, *_path_lines(summary.critical_path), *_waits(summary), *more_notes),
    )


def _step_lines(summary: Summary) -> Iterator[str]:
    steps = summary.steps
    if steps.whole_run:
        yield "No complete step was recorded: these figures are of the whole run."
        return
    step_s = steps.step_s
    interval = ""
    if step_s.n > 1 and not summary.run.steps_are_means:  # of means of steps it would be too narrow
        low, high = units.seconds(max(0.0, step_s.low)), units.seconds(step_s.high)
        interval = f" (95 % CI {low} to {high})"
    yield f"{units.seconds(step_s.mean)} a step{interval}, {units.plural(step_s.n, 'step')}."
    if steps.warmup:
        slow = [time.step_s for time in steps.times if time.warmup]
        which = f"the first {len(slow)} steps"
        if len(slow) <= _MOST_STEPS:
            which = f"step{'s' * (len(slow) > 1)} {_first_few(steps.warmup)}"
        mean_s = units.seconds(sum(slow) / len(slow)) + " each" * (len(slow) > 1)
        yield f"Left out as warm-up: {which} ({mean_s})."
    if steps.stalled:
        steady = [time.step for time in steps.times if time.steady]
        whole = " in whole generations" if steps.generations else ""
        stretch = f"the longest stretch without a stall{whole}"
        stalled = _first_few(steps.stalled)
        yield f"Measured: steps {steady[0]} to {steady[-1]}, {stretch}. Stalled: {stalled}."
    yield from _whole_generations(steps)
    if steps.between_steps_s > 0.01 * step_s.mean * step_s.n:
        yield f"Between the steps: {units.seconds(steps.between_steps_s)} more."
    if steps.repeated:
        yield f"Done again after a restart: {units.plural(steps.repeated, 'step')}."


def _path_lines(path: CriticalPath | None) -> Iterator[str]:
    if path is None or not path.is_traced or path.unknown_share >= _TOO_LITTLE:
        return
    work = [one for one in path.shares if one.stage not in (UNKNOWN, "wait")]
    differ = [one for one in work if abs(one.share - one.exposed_share) > _APART]
    if not differ:
        return
    apart = [f"{one.stage} ({units.share(one.exposed_share)} exposed)" for one in differ]
    shown = [f"{one.stage} {units.share(one.share)}" for one in work if one.share >= _SMALL]
    rest = f", unexplained {units.share(path.unknown_share)}" if path.unknown_share else ""
    yield f"Critical path: {', '.join(shown)}{rest}. The table differs in {listed(apart)}."


def _first_few(steps: Sequence[int]) -> str:
    more = " and more" * (len(steps) > _MOST_STEPS)
    return listed([str(number) for number in steps[:_MOST_STEPS]]) + more


def _whole_generations(steps: StepsSummary) -> Iterator[str]:
    if not steps.steps_per_generation:
        return
    serves = f"One generation serves {steps.steps_per_generation} steps"
    if not steps.generations:
        why = "no generation is whole here: rollout is too large or too small in these figures"
        yield f"{serves}, and {why}."
        return
    steady = [time.step for time in steps.times if time.steady]
    generations = units.plural(steps.generations, "generation")
    out = ""
    if steps.left_out:
        out = f" Left out, as their generation is not whole: {_first_few(steps.left_out)}."
    yield f"{serves}. Measured: steps {steady[0]} to {steady[-1]}, {generations}.{out}"


def _waits(summary: Summary) -> Iterator[str]:
    for wait in summary.waits:
        who, each = units.plural(wait.processes, wait.role or "process"), ""
        if wait.threads > wait.processes:
            who, each = f"{who} in {wait.threads} threads or tasks", " each"
        part, often = units.share(wait.share), units.plural(wait.spans, "time")
        yield f"Waiting for “{wait.name}”: {who}, {part} of the time{each} ({often})."


def syncs_section(summary: Summary) -> Section:
    syncs = summary.syncs
    assert syncs is not None
    rows = []
    for role in syncs.participants:
        took, rate = role.update_s, units.number(role.bytes_per_s / 1e9)
        times = map(units.seconds, (role.stall_s.mean, took.p50, took.p95))
        moved = units.size(role.bytes.mean), units.seconds(took.mean), rate
        rows.append((role.role, str(role.processes), *moved, *times))
    titles = ("processes", 76), "bytes", "mean", "GB/s", "stall", ("p50", 76), ("p95", 68)
    columns = numbers(*titles)
    return Section("Weight sync", tuple(_update_lines(syncs)), table(rows, "role", *columns))


def _update_lines(syncs: Syncs) -> Iterator[str]:
    if not syncs.updates:
        recorded = units.plural(syncs.recorded_updates, "update")
        yield f"{recorded} recorded, none in the measured steps."
        return
    size, seconds = syncs.bytes_per_update, syncs.update_s.mean
    line = f"{units.plural(syncs.updates, 'update')}, {units.seconds(seconds)} each"
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
            parts.append(f"other {units.seconds(rest_s)}")
        yield f"Phases: {', '.join(parts)}."
