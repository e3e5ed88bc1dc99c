"""Whether a job gets on, and how it ended: crashes, failed steps, hangs, lost processes."""

from __future__ import annotations

import signal

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.alarm import (
    ALARM,
    CRASH,
    LEAST_HANG_S,
    LOST_SHARE,
    NAMED,
    NOTE,
    STALL_TIMES,
    Alarm,
)
from rltrace.analysis.coverage import known_until, step_known_until
from rltrace.analysis.steps import Steps, step_errors
from rltrace.trace.ends import End, read_ends
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Stage

_SILENT_S = 30.0
"""A first step in which nothing begins or ends for so long may be stuck, where it is silent for
`STALL_TIMES` times as long as it worked."""
_AT_ONCE = (None, 0, -signal.SIGKILL, 128 + signal.SIGKILL)  # others take a while to end
_NO_HANG = (Stage.STEP, Stage.WAIT, Stage.OTHER)
_DEADLY = {
    *(signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
}
_BY_HAND = {signal.SIGINT, signal.SIGTERM}


def crash(run: Run, steps: Steps) -> list[Alarm]:
    code = run.meta.get("exit_code")
    done = 0 if steps.whole_run else len(steps.windows)
    plural = f"{done} complete step{'s' * (done != 1)}"
    when = f"after {plural}" if done else "before its first step was complete"
    if steps.in_progress:
        last = steps.in_progress[-1][0]
        error = step_errors(run).get(last)
        when = f"in step {last}{f' ({error})' if error else ''}, {when}"
    if not isinstance(code, int):
        # Its agent wrote the end down, or nobody was left to do so.
        seen = run.meta.get("end_real_ns") is not None
        why = "rltrace wrap was killed" if seen else "killed, or the machine went down"
        says = f"the job ended {when}, and nobody saw how: {why}"
        return [Alarm(CRASH, NOTE if done else ALARM, says)] if _killed_unseen(run) else []
    if code == 0:
        return []
    number = -code if code < 0 else code - 128
    how = f"signal {number}" if code < 0 else f"exit code {code}"
    if number in list(signal.Signals):
        how = f"{how}, {signal.Signals(number).name}"
    asked = run.meta.get("signals")
    by_hand = [s for s in asked if s in _BY_HAND] if isinstance(asked, list) else []
    if by_hand and number not in _BY_HAND:  # it took Ctrl-C, and ended with a code of its own
        how = f"{signal.Signals(by_hand[0]).name}, then {how}"
    if number in _BY_HAND or by_hand:
        return [Alarm(CRASH, NOTE, f"the job was ended from outside ({how})")]
    return [Alarm(CRASH, ALARM, f"the job failed ({how}) {when}")]


def _killed_unseen(run: Run) -> bool:
    """Whether the job is over although whoever was to see it end did not: the agent wrote so, or
    its processes are gone."""
    was_wrapped = not run.meta.get("imported") and isinstance(run.meta.get("command_pid"), int)
    return was_wrapped and (run.meta.get("end_real_ns") is not None or run.goes_on is False)


def failed(run: Run, steps: Steps) -> list[Alarm]:
    """Steps that an exception left, and the job went on: they are in no figure of a step."""
    numbers = [number for number, _, _ in steps.failed]
    if not numbers:
        return []
    errors = step_errors(run)
    known = [errors[number] for number in numbers if number in errors]
    why = f" ({known[0]})" if known else ""
    begun = len(numbers) + (0 if steps.whole_run else len(steps.windows))
    shown = ", ".join(map(str, numbers[:NAMED])) + " …" * (len(numbers) > NAMED)
    severity = ALARM if len(numbers) >= LOST_SHARE * begun else NOTE
    says = f"{len(numbers)} of {begun} steps ({shown}) failed{why}"
    return [Alarm("failed steps", severity, f"{says}: no figure of a step has them in it")]


def hang(
    run: Run, activity: Activity, steps: Steps, usual_s: float, recorded_until_ns: int
) -> list[Alarm]:
    if np.isnan(usual_s) and not steps.whole_run:  # too few: by the longest, with its warm-up
        usual_s = max((window.length_s for window in steps.windows), default=float("nan"))
    if np.isnan(usual_s):
        return []
    errors, least_s = step_errors(run), max(STALL_TIMES * usual_s, LEAST_HANG_S)
    ends_s = 0.0 if run.meta.get("exit_code") in _AT_ONCE else _SILENT_S
    last = steps.windows[-1].end_ns if steps.windows and not steps.whole_run else 0
    found = []
    for number, start in steps.in_progress:
        if number in errors or start < last:
            continue
        until_ns = step_known_until(run, activity, start, recorded_until_ns)
        lasted_s = (until_ns - start) / 1e9
        name, stuck_s = _stuck_in(run, start, least_s, until_ns - int(ends_s * 1e9))
        if max(lasted_s - ends_s, stuck_s) > least_s:
            inside = f", {stuck_s:.{0 if stuck_s >= 10 else 1}f} s of it in “{name}”"
            says = (
                f"step {number} had been in progress for {lasted_s / usual_s:.0f} times the usual "
                f"step when the recording ended{inside if stuck_s else ''}"
            )
            found.append(Alarm("hang", ALARM, says))
    return found


def stuck_in_the_first(
    run: Run, activity: Activity, steps: Steps, recorded_until_ns: int
) -> list[Alarm]:
    """No step tells how long one takes: what tells is that nothing happens any more."""
    if not steps.whole_run or not steps.in_progress:
        return []
    number, start = steps.in_progress[-1]
    if number in step_errors(run):
        return []
    until_ns = step_known_until(run, activity, start, recorded_until_ns)
    since_ns = max(start, activity.last_ns)
    silent_s = (until_ns - since_ns) / 1e9
    names = [s.name for s in activity.open_spans if s.stage is not Stage.STEP]
    if silent_s < max(_SILENT_S, STALL_TIMES * (since_ns - start) / 1e9):
        return []
    inside = ", ".join(f"“{name}”" for name in [*dict.fromkeys(names)][-NAMED:])
    says = (
        f"step {number}, the first, had not ended after {(until_ns - start) / 1e9:.0f} s, and "
        f"for the last {silent_s:.0f} s nothing began or ended: it is stuck in "
        f"{inside or 'no span'}" + (", unless that takes so long" if inside else "")
    )
    return [Alarm("hang", ALARM, says)]


def lost(run: Run, activity: Activity, usual_s: float, until_ns: int) -> list[Alarm]:
    """Processes that fell silent in the middle of their work while others went on, as far as the
    processes are known: files are read, and brought, one after the other."""
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
    says = [
        f"{len(names)} process{'es' * (len(names) != 1)}{f' of role {role}' * bool(role)} "
        f"fell silent in “{names[0]}” and the job went on for more than {STALL_TIMES:g} usual steps"
        for role, names in by_role.items()
    ]
    return [Alarm("lost process", ALARM, one) for one in says]


def killed(run: Run, activity: Activity) -> list[Alarm]:
    """Processes that a signal ended which nobody of the job had sent: the kernel where memory ran
    out, a person, a fault of their own."""
    ends = read_ends(run.path, run.processes)
    at_work = {s.process: s for s in activity.open_spans if s.stage not in _NO_HANG}
    named = []
    for process in run.processes:
        end = ends.get(process.number, End(0, False))
        if end.asked or not (end.signal in _DEADLY or end.why):
            continue
        who = process.role or (f"child of {process.child_of}" if process.child_of else "process")
        inside = at_work.get(process.number)
        where = f" in “{inside.name}”" if inside is not None else ""
        named.append(f"{who} (pid {process.pid} on {process.host}) {_by(end)}{where}")
    if not named:
        return []
    n, shown = len(named), ", ".join(named[:NAMED]) + " …" * (len(named) > NAMED)
    what = "process of the job was" if n == 1 else "processes of the job were"
    return [Alarm("killed process", NOTE, f"{n} {what} killed: {shown}")]


def _by(end: End) -> str:
    if end.why == "memory":
        return "by Ray, as the memory of its node ran out"
    if end.why:
        return "with its node" if end.why == "node" else "(Ray does not say by whom)"
    return f"by {signal.Signals(end.signal).name}"


# --- what a step was stuck in when its job was ended: Ctrl-C ends the span that hangs, a kill not

_LONG_BY_NATURE = f"({int(Stage.STEP)}, {int(Stage.EVAL)}, {int(Stage.CHECKPOINT)})"


def _stuck_in(
    run: Run, step_start_ns: int, least_s: float, open_until_ns: int
) -> tuple[str, float]:
    """Name and seconds of the innermost span, of the process of the step that began then (Unix ns),
    that took more than `least_s`; one that is open counts until `open_until_ns`. 0 s: there is
    none. Evaluations and checkpoints are long by nature."""
    found = run.ask(f"""
        select text, ns / 1e9 from (
            select name, process, start_ns,
                   case when end_ns < 0 then {open_until_ns} else end_ns end - start_ns as ns
            from raw_spans where start_ns >= {step_start_ns} and stage not in {_LONG_BY_NATURE}
                  and process in (select process from raw_spans where start_ns = {step_start_ns}
                                  and stage = {int(Stage.STEP)}))
        left join names on names.id = name
        where ns > {least_s * 1e9} order by start_ns desc limit 1
    """)
    return (str(found[0][0]), float(found[0][1])) if found else ("", 0.0)
