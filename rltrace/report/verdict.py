"""The report's first lines: which wall binds, and what that rests on."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.binding import ALIKE, INSUFFICIENT, LIKELY, Binding
from rltrace.analysis.critical_path import UNKNOWN, CriticalPath, PathShare
from rltrace.analysis.summary import StepsSummary, Summary
from rltrace.analysis.verdict import Verdict
from rltrace.analysis.walls.cost import stages_of
from rltrace.analysis.walls.wall import Wall
from rltrace.report import units
from rltrace.report.layout import labelled, listed
from rltrace.report.walls_section import (
    against,
    figure_words,
    gain_words,
    nothing_to_do,
    setting_words,
    why_no_fix,
)
from rltrace.trace.vocabulary import Stage, word

_WAIT_SHARE = 0.05
_MOST_FIGURES = 4
_MOST_OF_PATH = 0.5  # a stage that is more of the critical path holds the step up, and no other
_UNWELL = {
    "part": "not all of it is here",
    "crash": "it failed",
    "failed steps": "steps failed",
    "hang": "a step hangs",
    "lost process": "a process was lost",
    "stall": "steps stalled",
    "restart": "steps were done again",
    "reward": "its reward fell",
    "verdicts": "most verdicts fail",
    "unused": "it trains on no sample",
    "not finite": "its figures are not finite",
}
"""Alarm by kind, in a few words; its sentence stands below."""


def headline(summary: Summary) -> str:
    found = summary.verdict
    if found.alarms:
        what = listed(list(dict.fromkeys(_UNWELL.get(k, k) for k in forbidding(summary))))
        return f"The run is not well: {what}. Repair that before anything is tuned"
    if found.balanced:
        return f"Nothing binds: {found.because}"
    if found.first is None:
        return f"Cannot tell which wall binds: {found.because}"
    names = listed([wall.name for wall in found.binding])
    cost = units.share(found.first.cost.share)
    if len(found.binding) > 1:
        verb = "are" if found.confidence == LIKELY else "may be"
        return f"{names} {verb} the walls: each takes about {cost} of the goodput"
    if found.confidence == LIKELY:
        return f"{names} is the wall: it takes {cost} of the goodput"
    return f"{names} may be the wall ({cost} of the goodput), but the evidence is weak"


def forbidding(summary: Summary) -> list[str]:
    return [one.kind for one in summary.health.alarms if one.forbids]


def stage_line(summary: Summary) -> str:
    """Which stage has the most exposed time, in one line."""
    binding = summary.binding
    if binding.stage is None or binding.confidence == INSUFFICIENT:
        return f"Insufficient evidence: {binding.because}"
    names = listed([labelled(row.name, row.symbol) for row in (binding.stage, *binding.tied)])
    if binding.confidence == LIKELY:
        return (
            f"{names} {'hold the step up together' if binding.tied else 'holds the step up most'}"
        )
    if binding.tied:
        return f"which of {names} holds the step up most cannot be told"
    return f"{names} may hold the step up most, but the evidence is weak"


def evidence(summary: Summary) -> Iterator[str]:
    """What the verdict rests on, one sentence each."""
    found = summary.verdict
    if summary.steps.stalled and not found.alarms:
        yield f"of {judged_steps(summary.steps)}; what stalled stands below"
    if found.first is not None and not found.alarms:
        yield from _of_walls(found)
        yield from _measured(found)
        others = [w for w in found.walls if w not in found.binding and w.cost.known][:2]
        if others:
            yield f"next: {listed([_with_cost(wall) for wall in others])}"
    elif not found.alarms:
        if found.would_tell:
            yield f"would be told by {listed(found.would_tell)}"
        yield from _measured(found)
    if summary.binding.stage is not None:
        of_walls = {stage for wall in found.binding for stage in stages_of(wall.name)}
        if found.alarms or not (of_walls or _nobody_can_tell(found)):
            yield stage_line(summary)
        elif of_walls and summary.binding.stage.stage not in of_walls:
            if says := _not_on_the_path(summary, of_walls):
                yield says
                yield from _waits_and_latency(summary)
                yield from _advice(found)
                return
            yield _beside_the_walls(summary, of_walls)
        yield from _stage_evidence(summary)
    yield from _advice(found)


def _of_walls(found: Verdict) -> Iterator[str]:
    """What each wall that binds looks like; it is named where there are several."""
    several = len(found.binding) > 1
    for wall in found.binding:
        which = f" of {wall.name} ({units.share(wall.cost.share)})" if several else ""
        yield f"you see{which}: {wall.symptom}"
        yield f"{'its' if several else 'the'} cost is {wall.because}"
        telling = [one for one in wall.evidence if not one.name.startswith("exposed")]
        if telling:
            yield "; ".join(figure_words(one) for one in telling[:_MOST_FIGURES])


def _with_cost(wall: Wall) -> str:
    return f"{wall.name} {units.share(wall.cost.share)}"


def _beside_the_walls(summary: Summary, of_walls: set[Stage]) -> str:
    """Which single stage has the most exposed time, and why it is not of the walls that bind."""
    found, binding = summary.verdict, summary.binding
    assert binding.stage is not None
    if binding.confidence == INSUFFICIENT:
        return f"which single stage holds the step up most cannot be told: {binding.because}"
    says = f"of single stages, {stage_line(summary)}"
    rows = [row for row in summary.stages if row.stage in of_walls and row.share > 0]
    together = sum(row.share for row in rows)
    if len(rows) > 1 and together > binding.share:
        names = listed([row.name for row in rows])
        return f"{says}; {names} together hold it up for longer ({units.share(together)} of it)"
    own = [w for w in found.walls if binding.stage.stage in stages_of(w.name) and w.cost.known]
    costs = listed([_with_cost(wall) for wall in own])
    return f"{says}; its walls cost less: {costs}" if own else says


def _not_on_the_path(summary: Summary, of_walls: set[Stage]) -> str:
    """That the stage with the most exposed time holds no step up: the critical path, which was
    followed, is mostly a stage of the walls that bind. Empty where it is not."""
    first, second = summary.binding.stage, path_leader(summary.critical_path)
    if first is None or second is None or summary.binding.confidence == INSUFFICIENT:
        return ""
    if second.share < _MOST_OF_PATH or second.stage not in {word(stage) for stage in of_walls}:
        return ""
    return (
        f"{labelled(first.name, first.symbol)} is exposed the most ({units.share(first.share)} of "
        f"the step), but holds it up less: the critical path is {second.stage} "
        f"{units.share(second.share)}"
    )


def judged_steps(steps: StepsSummary) -> str:
    """Which steps the figures are over, where some stalled."""
    steady = [time.step for time in steps.times if time.steady]
    whole = " in whole generations" if steps.generations else ""
    return f"steps {steady[0]} to {steady[-1]}, the longest stretch without a stall{whole}"


def _nobody_can_tell(found: Verdict) -> bool:
    """Whether the headline says that it cannot be told, and why: no stage is named after that."""
    return found.first is None and not found.balanced and not found.alarms


def _measured(found: Verdict) -> Iterator[str]:
    """What delaying the stages of the walls that bind says of their cost, and of any other stage
    where it says otherwise."""
    of_walls = {stage for wall in found.binding for stage in stages_of(wall.name)}
    for one in found.measured:
        least = max(0.0, one.share.value)  # noise may measure less than nothing
        share = f"{units.share(least)} ± {100 * one.share.half_width:.0f}"
        says = f"its {one.computed_by} says {units.share(one.computed)}"
        if one.contradicts:
            yield f"measured by delaying: {share} of the step waits for {one.name}; {says}, wrongly"
        elif one.stage in of_walls:
            so = "so too" if one.agrees else "which may be"
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


def _stage_evidence(summary: Summary) -> Iterator[str]:
    binding = summary.binding
    if binding.stage is None:
        return
    first, step_s = binding.stage, summary.steps.step_s.mean
    what = "window" if summary.steps.whole_run else "step"
    exposed = f"exposed for {units.seconds(first.exposed_s.mean)} of a {units.seconds(step_s)} "
    exposed += f"{what} ({units.share(binding.share)})"
    if binding.confidence == INSUFFICIENT or _nobody_can_tell(summary.verdict):
        yield f"most exposed so far: {labelled(first.name, first.symbol)}, {exposed}"
        return
    if binding.tied:
        yield from _tie(summary)
    else:
        led = f"{binding.agreeing_steps} of {binding.steps} steps{_other_leader(binding)}"
        yield f"{first.name} is {exposed}, the most of any stage in {led}"
        yield from _lead(binding)
    yield from _waits_and_latency(summary)


def _waits_and_latency(summary: Summary) -> Iterator[str]:
    first = summary.binding.stage
    wait = next((wait for wait in summary.waits if wait.in_step), None)
    if wait is not None and wait.share >= _WAIT_SHARE:
        who = wait.role or "a process"
        yield f"{who} is blocked on “{wait.name}” for {units.share(wait.share)} of the time"
    latency = summary.tail.latency_s
    if first is not None and first.stage is Stage.ROLLOUT and latency.n > 1:
        yield (
            f"a trajectory takes {units.seconds(latency.p50)} in the median, the longest "
            f"{units.seconds(latency.largest)} (p95/p50 {units.ratio(latency.tail_ratio)})"
        )


def _lead(binding: Binding) -> Iterator[str]:
    second, margin = binding.runner_up, binding.margin_s
    if binding.confidence == LIKELY and not margin.low > 0:
        yield f"every other stage is exposed for less than {units.share(ALIKE)} of a step"
    elif second is not None:
        yield (
            f"{units.seconds(margin.mean)} ahead of {labelled(second.name, second.symbol)} "
            f"(95 % interval {units.seconds(margin.low)} to {units.seconds(margin.high)})"
        )


def _other_leader(binding: Binding) -> str:
    """Who led most often where the candidate did not; nothing where that was rare."""
    first = binding.stage.name if binding.stage else ""
    others = {name: led for name, led in binding.led_steps.items() if led and name != first}
    if binding.confidence == LIKELY or not others:
        return ""
    second, led = max(others.items(), key=lambda item: item[1])
    return f", {second} in {led}"


def _tie(summary: Summary) -> Iterator[str]:
    """The stages that are tied side by side, and how far the first is from the second."""
    binding = summary.binding
    assert binding.stage is not None
    for row in (binding.stage, *binding.tied):
        led = binding.led_steps.get(row.name, 0)
        yield (
            f"{row.name} is exposed for {units.seconds(row.exposed_s.mean)} of a "
            f"{units.seconds(summary.steps.step_s.mean)} step ({units.share(row.share)}), "
            f"the most of any stage in {led} of {binding.steps} steps"
        )
    second, margin = binding.runner_up, binding.margin_s
    if second in binding.tied:
        fewer = f"but {binding.stage.name} leads in fewer steps"
        says = "which holds 0" if margin.low <= 0 else fewer
        yield (
            f"{binding.stage.name} minus {second.name}: {units.seconds(margin.mean)} in the mean "
            f"(95 % interval {units.seconds(margin.low)} to {units.seconds(margin.high)}, {says})"
        )


# --- what the critical path adds to the table of stages: one line, where it says something else

_APART = 0.05  # shares that differ by more than this are worth a line
_SMALL = 0.005
_TOO_LITTLE = 0.5  # explained: the path says less than the table


def _on_path(path: CriticalPath | None) -> list[PathShare]:
    """The stages of which the path is made, the most first; none where it was not followed."""
    if path is None or not path.is_traced or path.unknown_share >= _TOO_LITTLE:
        return []
    return [one for one in path.shares if one.stage not in (UNKNOWN, "wait")]


def path_leader(path: CriticalPath | None) -> PathShare | None:
    """The stage of which the path is made the most; None where it was not followed."""
    return next(iter(_on_path(path)), None)


def path_lines(path: CriticalPath | None) -> Iterator[str]:
    """The shares on the path, where any differs much from the exposed share."""
    work = _on_path(path)
    apart = [
        f"{one.stage} ({units.share(one.exposed_share)} exposed)"
        for one in work
        if abs(one.share - one.exposed_share) > _APART
    ]
    if path is None or not apart:
        return
    shown = [f"{one.stage} {units.share(one.share)}" for one in work if one.share >= _SMALL]
    rest = f", unexplained {units.share(path.unknown_share)}" if path.unknown_share else ""
    yield (
        "Followed from the end of the run back to what let each thing start, the critical path is "
        f"{', '.join(shown)}{rest}. It differs from the table in {listed(apart)}."
    )
