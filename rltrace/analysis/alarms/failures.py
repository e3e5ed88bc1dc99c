"""The job or a process of it failed, hangs or stalled, or something of the run is missing."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import numpy as np

from rltrace.analysis.alarms.alarm import (
    CRASH,
    LOST_SHARE,
    NAMED,
    STALL_TIMES,
    Said,
    alarm,
    grave,
    note,
)
from rltrace.analysis.figures.coverage import known_until, step_known_until
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stuck.observed import stuck_of
from rltrace.analysis.timeline.stages import find_stalls, usual_step_s
from rltrace.analysis.timeline.steps import Steps, step_errors
from rltrace.trace.launcher_ranks import MISSING, MISSING_RANKS
from rltrace.trace.read.processes import TracedProcess
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.read.run_losses import End, read_ends
from rltrace.trace.run_dir import (
    ELSEWHERE,
    NOT_WHOLE,
    PACK_LOST,
    PROCESS_FAILED,
    STUCK,
    THREAD_FAILED,
)
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Stage, word

_SQL = packaged_toml("analysis/data/queries.toml")
_NO_HANG = (Stage.STEP, Stage.WAIT, Stage.OTHER)
_DEADLY = {signal.Signals[f"SIG{x}"] for x in ("KILL", "SEGV", "BUS", "ABRT", "FPE", "ILL")}
_BY_HAND = {signal.SIGINT, signal.SIGTERM}


@alarm("ids", "ids of samples came again")
def ids_again(analysis: RunAnalysis) -> Iterator[Said]:
    """`rltrace.trace.read.trajectory_ids`."""
    told, unclear = analysis.run.ids_that_came_again()
    lost = "their lags, groups and rewards are unknown"
    found = (
        (told, "after it was trained on: each time is taken for another sample"),
        (unclear, f"while it was generated or waited for training: {lost}"),
    )
    says = "; ".join(f"ids of samples came again, {n} {when}" for n, when in found if n)
    if says:
        yield note(says + ". Give each sample an id of its own")


@alarm(CRASH, "it failed")
def crash(analysis: RunAnalysis) -> Iterator[Said]:
    run, steps = analysis.run, analysis.steps
    code, imported = run.meta.get("exit_code"), run.meta.get("imported")
    by_log = imported if isinstance(imported, dict) else {}
    for key, ends in (("failed", grave), ("ended", note)):
        if key in by_log:
            yield ends(str(by_log[key]))
            return
    done = 0 if steps.whole_run else len(steps.windows)
    plural = f"{done} complete step{'s' * (done != 1)}"
    when = f"after {plural}" if done else "before its first step was complete"
    if steps.in_progress:
        when = f"in step {steps.in_progress[-1][0]}, {when}"
    if not isinstance(code, int):
        # Its agent wrote the end down, or nobody was left to do so and its processes are gone.
        seen = run.meta.get("end_real_ns") is not None
        why = "rltrace wrap was killed" if seen else "killed, or the machine went down"
        says = f"the job ended {when}; how was not recorded: {why}"
        by_wrap = not imported and isinstance(run.meta.get("command_pid"), int)
        if by_wrap and (seen or run.goes_on is False):
            yield note(says) if done else grave(says)
        return
    if code == 0:
        return
    number = -code if code < 0 else code - 128
    how = f"signal {number}" if code < 0 else f"exit code {code}"
    if number in list(signal.Signals):
        how = f"{how}, {signal.Signals(number).name}"
    asked = run.meta.get("signals")
    by_hand = [s for s in asked if s in _BY_HAND] if isinstance(asked, list) else []
    if by_hand and number not in _BY_HAND:  # it took Ctrl-C, and ended with a code of its own
        how = f"{signal.Signals(by_hand[0]).name}, then {how}"
    how += f", {error}" if (error := _exception(run, steps)) else ""
    if number in _BY_HAND or by_hand:
        yield note(f"the job was ended from outside ({how})")
    else:
        yield grave(f"the job failed ({how}) {when}")


def _exception(run: OpenedRun, steps: Steps) -> str:
    """What ended the job's own process, or the step in which it was; empty: none is known."""
    own = PROCESS_FAILED, str(run.meta.get("command_pid"))
    for problem in run.problems:
        if (problem.get("what"), problem.get("target")) == own:
            return str(problem.get("detail"))
    return step_errors(run).get(steps.in_progress[-1][0], "") if steps.in_progress else ""


@alarm("failed steps", "steps failed")
def failed_steps(analysis: RunAnalysis) -> Iterator[Said]:
    """Steps that an exception left, and the job went on: they are in no figure of a step."""
    run, steps = analysis.run, analysis.steps
    numbers = [number for number, _, _ in steps.failed]
    if not numbers:
        return
    errors = step_errors(run)
    known = [errors[number] for number in numbers if number in errors]
    why = f" ({known[0]})" if known else ""
    begun = len(numbers) + (0 if steps.whole_run else len(steps.windows))
    shown = ", ".join(map(str, numbers[:NAMED])) + " …" * (len(numbers) > NAMED)
    says = f"{len(numbers)} of {begun} steps ({shown}) failed{why} and are left out of all figures"
    yield grave(says) if len(numbers) >= LOST_SHARE * begun else note(says)


@alarm("restart", "steps were done again")
def steps_again(analysis: RunAnalysis) -> Iterator[Said]:
    again = analysis.steps.repeated
    if again and len({window.process for window in analysis.steps.windows}) > 1:
        yield grave(f"{again} step{'s were' if again > 1 else ' was'} done again after a restart")
    elif again:
        what = f"the numbers of {again} steps" if again > 1 else "a step's number"
        says = f"{what} came again in one process, which counts as work done again"
        yield grave(f"{says}; if it is not, number the steps through: rltrace.step(n)")


@alarm("lost process", "a process was lost")
def lost(analysis: RunAnalysis) -> Iterator[Said]:
    run, activity, until_ns = analysis.run, analysis.activity, analysis.until_ns
    usual_s = usual_step_s(analysis.steps, analysis.breakdown)
    role_of = {process.number: process.role for process in run.processes}
    ends = read_ends(run.path, run.processes)
    silent = {
        span.process: span
        for span in activity.open_spans
        if span.stage not in _NO_HANG
        and (min(activity.last_ns, known_until(run, span, until_ns)) - span.last_sign_ns) / 1e9
        > STALL_TIMES * usual_s
        and not (span.process in ends and ends[span.process].asked)
    }
    by_role: dict[str, list[str]] = {}
    for number, span in silent.items():
        by_role.setdefault(role_of.get(number) or "", []).append(span.name)
    for role, names in by_role.items():
        who = f"{len(names)} process{'es' * (len(names) != 1)}{f' of role {role}' * bool(role)}"
        after = f"the job went on for more than {STALL_TIMES:g} usual steps"
        yield grave(f"{who} fell silent in “{names[0]}”, and {after}")


@alarm("failed process", "a process failed")
def failed(analysis: RunAnalysis) -> Iterator[Said]:
    """Processes that ended as nobody of the job had asked. It is grave where the job went on
    without one for longer than usual steps; `crash` is of the job's own process. A job that ended
    well may kill at its end what is idle."""
    run = analysis.run
    ends, well = read_ends(run.path, run.processes), run.meta.get("exit_code") == 0
    excepted = [problem for problem in run.problems if problem.get("what") == PROCESS_FAILED]
    errors = {str(one.get("who")): f"failed: {one.get('detail')}" for one in excepted}
    at_work = {s.process: s for s in analysis.activity.open_spans if s.stage not in _NO_HANG}
    usual_ns = 1e9 * usual_step_s(analysis.steps, analysis.breakdown)
    last_ns = dict(run.ask("select process, max(last_ns) from span_stages group by process"))
    for process in run.processes:
        end, error = ends.get(process.number, End(0, False)), errors.get(process.who, "")
        how = error or _by(end) if error or not end.asked else ""
        if not how or process.pid == run.meta.get("command_pid"):
            continue
        inside = at_work.get(process.number)
        says = f"{_who(process)} {how}{f' in “{inside.name}”' if inside else ''}"
        since_ns = last_ns.get(process.number, analysis.activity.last_ns)
        left_ns = analysis.activity.last_ns - since_ns
        if any(_takes_over(other, process, since_ns) for other in run.processes):
            yield note(f"{says}, and was started again")
        elif left_ns > STALL_TIMES * usual_ns:
            yield grave(f"{says}; the job went on without it for {left_ns / 1e9:.0f} s")
        elif error or end.why or inside or not (well and end.signal == signal.SIGKILL):
            yield note(says)


@alarm("failed thread", "a thread failed")
def failed_thread(analysis: RunAnalysis) -> Iterator[Said]:
    """Threads that an exception ended: what they were for nobody knows, so the run is judged."""
    usual_ns = 1e9 * usual_step_s(analysis.steps, analysis.breakdown)
    process_of = {process.who: process for process in analysis.run.processes}
    for problem in analysis.run.problems:
        if problem.get("what") != THREAD_FAILED or problem.get("who") not in process_of:
            continue
        who = _who(process_of[problem["who"]])
        says = f"a thread of {who}, “{problem.get('target')}”, failed: {problem.get('detail')}"
        left_ns = analysis.activity.last_ns - problem.get("real_ns", analysis.activity.last_ns)
        goes_on = left_ns > STALL_TIMES * usual_ns
        went_on = f"{says}; the job went on without it"
        yield grave(went_on, judged_anyway=True) if goes_on else note(says)


def _takes_over(other: TracedProcess, process: TracedProcess, since_ns: int) -> bool:
    """Whether it began after the end of one whose place it has."""
    actor = process.facts.get("actor_id")
    same = process.role and (other.role, other.rank) == (process.role, process.rank)
    same = same or (actor and other.facts.get("actor_id") == actor)
    return bool(same) and other.start_ns > since_ns


def _who(process: TracedProcess) -> str:
    who = process.role or (f"child of {process.child_of}" if process.child_of else "process")
    return f"{who} (pid {process.pid} on {process.host})"


def _by(end: End) -> str:
    """How a process ended that was not asked to; empty: well, or nobody knows."""
    if end.why:
        known = {"memory": "by Ray, as the memory of its node ran out", "node": "with its node"}
        return f"was killed {known.get(end.why, '(Ray does not say by whom)')}"
    if end.signal in _DEADLY:
        return f"was killed by {signal.Signals(end.signal).name}"
    return f"failed with exit code {end.code}" if end.code else ""


# Of a part nobody can tell what held the whole up; what a dead node had not shipped is little.


@alarm("part", "not all of it is here")
def partial(analysis: RunAnalysis) -> Iterator[Said]:
    if missing := analysis.run.meta.get(MISSING_RANKS):
        yield note(MISSING.format(missing))
    lost = 0
    for problem in analysis.run.problems:
        what, target, detail = (problem.get(key) for key in ("what", "target", "detail"))
        lost += what == PACK_LOST
        if what == ELSEWHERE:
            yield grave(f"{detail}: `rltrace report {target}`")
        elif what == NOT_WHOLE:
            yield note(f"{target}: {detail}")
    if lost:
        packs = f"{lost} pack{'s' * (lost > 1)} of what was shipped {'is' if lost == 1 else 'are'}"
        yield grave(f"{packs} missing or damaged, so rows may be missing")


# --- steps that do not end, or stalled, and what they were in

_LEAST_S = 5.0  # what takes less is no hang: a compilation or a slow disk takes seconds, too
# A first step in which nothing begins or ends for so long may be stuck, where it is silent for
# `STALL_TIMES` times as long as it worked.
_SILENT_S = 30.0
_AT_ONCE = (None, 0, -signal.SIGKILL, 128 + signal.SIGKILL)  # others take a while to end


@alarm("stuck", "it is stuck")
def stuck(analysis: RunAnalysis) -> Iterator[Said]:
    """What agents saw; of several nodes what is believed first. Where the job went on since, it was
    stuck."""
    now, run = analysis.stuck, analysis.run
    told = (stuck_of(said.get(STUCK)) for said in run.problems)
    since = {one.since_ns: one for one in told if one is not None}
    ended = (run.meta.get("settings") or {}).get("on_stuck") == "kill"
    for before in (one for at_ns, one in since.items() if now is None or at_ns != now.since_ns):
        after = "it was ended (--on-stuck kill)" if ended else "then it went on"
        yield (grave if ended else note)(f"it was {before.sentence}; {after}")
    if now is not None:
        yield grave(now.sentence)


@alarm("hang", "a step hangs")
def hang(analysis: RunAnalysis) -> Iterator[Said]:
    if analysis.stuck:
        return
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
    if not steps.whole_run or not steps.in_progress or analysis.stuck:
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


def _stuck_in(run: OpenedRun, start_ns: int, least_s: float, until_ns: int) -> tuple[str, float]:
    """Name and seconds of the innermost span of more than `least_s` in the process of the step that
    began then (Unix ns); 0 s: none. One that is open counts until `until_ns`."""
    told = {"start": start_ns, "until": until_ns, "least": least_s * 1e9}
    found = run.ask(_SQL["stuck_in"].format(Stage=Stage, **told))
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
