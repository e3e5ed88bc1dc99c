"""The report's first lines: which wall binds, and what that rests on."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.critical_path import UNKNOWN, CriticalPath
from rltrace.analysis.summary import StepsSummary, Summary
from rltrace.analysis.verdict import Verdict
from rltrace.analysis.walls.registry import stages_of
from rltrace.analysis.walls.wall import LIKELY
from rltrace.report import units
from rltrace.report.layout import listed
from rltrace.report.walls_section import (
    against,
    figure_words,
    gain_words,
    nothing_to_do,
    setting_words,
    why_no_fix,
)
from rltrace.trace.vocabulary import Stage

_WAIT_SHARE = 0.05
_MOST_FIGURES = 4


def headline(summary: Summary) -> str:
    found = summary.verdict
    if found.alarms:
        grave = [one.short for one in summary.health.alarms if one.forbids]
        what = listed(list(dict.fromkeys(grave)))
        return f"The run is not well: {what}. Repair that before anything is tuned"
    if found.balanced:
        return f"Nothing binds: {found.because}"
    if found.first is None:
        return f"Cannot tell which wall binds: {found.because}"
    names = listed([wall.name for wall in found.binding])
    cost = units.share(found.first.cost.share)
    if found.may_cost_more:
        several = f"walls (each {cost}" if len(found.binding) > 1 else f"wall ({cost}"
        others = listed(found.may_cost_more)
        return f"{names} may be the {several} of the goodput): {others} cannot be told"
    if len(found.binding) > 1:
        verb = "are" if found.confidence == LIKELY else "may be"
        return f"{names} {verb} the walls: each takes about {cost} of the goodput"
    if found.confidence == LIKELY:
        return f"{names} is the wall: it takes {cost} of the goodput"
    return f"{names} may be the wall ({cost} of the goodput), but the evidence is weak"


def evidence(summary: Summary) -> Iterator[str]:
    """What the verdict rests on, one sentence each."""
    found = summary.verdict
    if summary.steps.stalled and not found.alarms:
        yield f"of {judged_steps(summary.steps)}; what stalled stands below"
    if found.first is not None and not found.alarms:
        yield from _of_walls(found)
        yield from _measured(summary)
        others = [w for w in found.walls if w not in found.binding and w.cost.known][:2]
        if others:
            costs = [f"{wall.name} {units.share(wall.cost.share)}" for wall in others]
            yield f"next: {listed(costs)}"
    elif not found.alarms:
        if found.would_tell:
            yield f"would be told by {listed(found.would_tell)}"
        yield from _measured(summary)
    if found.alarms or found.first is not None or found.balanced:
        yield from _waits_and_latency(summary)
    yield from _advice(found)


def _of_walls(found: Verdict) -> Iterator[str]:
    """What each wall that binds looks like; it is named where there are several."""
    several = len(found.binding) > 1
    for wall in found.binding:
        which = f" of {wall.name} ({units.share(wall.cost.share)})" if several else ""
        yield f"you see{which}: {wall.symptom}"
        yield f"{'its' if several else 'the'} cost is {wall.because}"
        if wall.evidence:
            yield "; ".join(figure_words(one) for one in wall.evidence[:_MOST_FIGURES])


def judged_steps(steps: StepsSummary) -> str:
    """Which steps the figures are over, where some stalled."""
    steady = [time.step for time in steps.times if time.steady]
    whole = " in whole generations" if steps.generations else ""
    return f"steps {steady[0]} to {steady[-1]}, the longest stretch without a stall{whole}"


def _measured(summary: Summary) -> Iterator[str]:
    """What delaying the stages of the walls that bind says of their cost, and of any other stage
    where it says otherwise."""
    of_walls = {stage for wall in summary.verdict.binding for stage in stages_of(wall.name)}
    probe = summary.probe
    if probe is None:
        return
    for one in (stage for stage in probe.stages if stage.tells):
        least = max(0.0, one.share.value)  # noise may measure less than nothing
        share = f"{units.share(least)} ± {100 * one.share.half_width:.0f}"
        says = f"its {probe.computed_by} says {units.share(one.computed_share)}"
        so = "wrongly" if one.contradicts else "so too" if one.agrees else "which may be"
        if one.contradicts or one.stage in of_walls:
            yield f"measured by delaying: {share} of the step waits for {one.name}; {says}, {so}"


def _advice(found: Verdict) -> Iterator[str]:
    if found.do_nothing:
        what = nothing_to_do(found)
        yield f"{what}: no known move against {against(found)} is predicted to gain anything"
    if why := why_no_fix(found):
        yield why
    if found.do_nothing or why:
        return
    best = next((fix for fix in found.fixes if fix.worth > 0), None)
    if best is not None:
        how = f" ({setting_words(best)})" if best.setting else ""
        yield f"first: {best.sized}{how}, {gain_words(best.goodput_gain)} goodput per device"
    elif found.unpredicted and found.fixes:
        first = found.fixes[0]
        how = f" ({setting_words(first)})" if first.setting else ""
        yield f"first: {first.move}{how}; its gain {found.unpredicted}"


def _waits_and_latency(summary: Summary) -> Iterator[str]:
    wait = next((wait for wait in summary.waits if wait.in_step), None)
    if wait is not None and wait.share >= _WAIT_SHARE:
        who = wait.role or "a process"
        yield f"{who} is blocked on “{wait.name}” for {units.share(wait.share)} of the time"
    latency = summary.tail.latency_s
    of_walls = {stage for wall in summary.verdict.binding for stage in stages_of(wall.name)}
    if Stage.ROLLOUT in of_walls and latency.n > 1:
        yield (
            f"a trajectory takes {units.seconds(latency.p50)} in the median, the longest "
            f"{units.seconds(latency.largest)} (p95/p50 {units.ratio(latency.tail_ratio)})"
        )


# --- what the critical path adds to the table of stages: one line, where it says something else

_APART = 0.05  # shares that differ by more than this are worth a line
_SMALL = 0.005
_TOO_LITTLE = 0.5  # explained: the path says less than the table


def path_lines(path: CriticalPath | None) -> Iterator[str]:
    """The shares on the path, where any differs much from the exposed share."""
    if path is None or not path.is_traced or path.unknown_share >= _TOO_LITTLE:
        return
    work = [one for one in path.shares if one.stage not in (UNKNOWN, "wait")]
    apart = [
        f"{one.stage} ({units.share(one.exposed_share)} exposed)"
        for one in work
        if abs(one.share - one.exposed_share) > _APART
    ]
    if not apart:
        return
    shown = [f"{one.stage} {units.share(one.share)}" for one in work if one.share >= _SMALL]
    rest = f", unexplained {units.share(path.unknown_share)}" if path.unknown_share else ""
    yield (
        f"The critical path, followed from the end of the run back, is {', '.join(shown)}{rest}. "
        f"It differs from the table in {listed(apart)}."
    )
