"""Steps that do not end, or stalled, and what they were in."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import numpy as np

from rltrace.analysis.alarms.alarm import NAMED, STALL_TIMES, Said, alarm, grave, note
from rltrace.analysis.figures.coverage import step_known_until
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.stages import find_stalls, usual_step_s
from rltrace.analysis.timeline.steps import step_errors
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.vocabulary import Stage, word

_LEAST_S = 5.0  # what takes less is no hang: a compilation or a slow disk takes seconds, too
# A first step in which nothing begins or ends for so long may be stuck, where it is silent for
# `STALL_TIMES` times as long as it worked.
_SILENT_S = 30.0
_AT_ONCE = (None, 0, -signal.SIGKILL, 128 + signal.SIGKILL)  # others take a while to end


@alarm("hang", "a step hangs")
def hang(analysis: RunAnalysis) -> Iterator[Said]:
    run, activity, steps = analysis.run, analysis.activity, analysis.steps
    usual_s = usual_step_s(steps, analysis.breakdown)
    if np.isnan(usual_s) and not steps.whole_run:  # too few: by the longest, with its warm-up
        usual_s = max((window.length_s for window in steps.windows), default=float("nan"))
    if np.isnan(usual_s):
        return
    errors, least_s = step_errors(run), max(STALL_TIMES * usual_s, _LEAST_S)
    ends_s = 0.0 if run.meta.get("exit_code") in _AT_ONCE else _SILENT_S
    last = steps.windows[-1].end_ns if steps.windows and not steps.whole_run else 0
    for number, start in steps.in_progress:
        if number in errors or start < last:
            continue
        until_ns = step_known_until(run, activity, start, analysis.until_ns)
        lasted_s = (until_ns - start) / 1e9
        name, stuck_s = _stuck_in(run, start, least_s, until_ns - int(ends_s * 1e9))
        if max(lasted_s - ends_s, stuck_s) > least_s:
            inside = f", {stuck_s:.{0 if stuck_s >= 10 else 1}f} s of it in “{name}”"
            yield grave(
                f"step {number} had run for {lasted_s / usual_s:.0f} times a usual step when the "
                f"recording ended{inside if stuck_s else ''}"
            )


@alarm("hang", "a step hangs")
def stuck_in_the_first(analysis: RunAnalysis) -> Iterator[Said]:
    """No step tells how long one takes: what tells is that nothing happens any more."""
    run, activity, steps = analysis.run, analysis.activity, analysis.steps
    if not steps.whole_run or not steps.in_progress:
        return
    number, start = steps.in_progress[-1]
    if number in step_errors(run):
        return
    until_ns = step_known_until(run, activity, start, analysis.until_ns)
    since_ns = max(start, activity.last_ns)
    silent_s = (until_ns - since_ns) / 1e9
    names = [s.name for s in activity.open_spans if s.stage is not Stage.STEP]
    if silent_s < max(_SILENT_S, STALL_TIMES * (since_ns - start) / 1e9):
        return
    inside = ", ".join(f"“{name}”" for name in [*dict.fromkeys(names)][-NAMED:])
    yield grave(
        f"the first step, {number}, had not ended after {(until_ns - start) / 1e9:.0f} s, and "
        f"nothing began or ended in the last {silent_s:.0f} s: it is stuck in "
        + (f"{inside}, or that takes so long" if inside else "untraced time")
    )


_LONG_BY_NATURE = f"({int(Stage.STEP)}, {int(Stage.EVAL)}, {int(Stage.CHECKPOINT)})"


def _stuck_in(run: OpenedRun, start_ns: int, least_s: float, until_ns: int) -> tuple[str, float]:
    """Name and seconds of the innermost span of more than `least_s` in the process of the step that
    began then (Unix ns); 0 s: none. One that is open counts until `until_ns`."""
    found = run.ask(f"""
        select text, ns / 1e9 from (
            select name, process, start_ns,
                   case when end_ns < 0 then {until_ns} else end_ns end - start_ns as ns
            from raw_spans where start_ns >= {start_ns} and stage not in {_LONG_BY_NATURE}
                  and process in (select process from raw_spans where start_ns = {start_ns}
                                  and stage = {int(Stage.STEP)}))
        left join names on names.id = name
        where ns > {least_s * 1e9} order by start_ns desc limit 1
    """)
    return (str(found[0][0]), float(found[0][1])) if found else ("", 0.0)


@alarm("stall", "steps stalled")
def stalled(analysis: RunAnalysis) -> Iterator[Said]:
    steps = analysis.steps
    found = find_stalls(steps, analysis.breakdown)
    if found is None:
        return
    n = len(found.places)
    numbers = ", ".join(str(steps.windows[i].step) for i in found.places[:NAMED])
    dots = " …" if n > NAMED else ""
    where = "untraced time" if found.stage is None else word(found.stage)
    took = _seconds(found.took_s / n) + " each on average" * (n > 1)
    says = (
        f"{n} step{'s' * (n > 1)} ({numbers}{dots}) stalled: {took} "
        f"where {_seconds(found.usual_s / n)} is usual, most of the difference in {where}; "
        f"that cost {100 * found.lost_share:.0f} % of the time of all steps after warm-up"
    )
    yield grave(says, judged_anyway=found.left_out) if found.grave else note(says)


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
