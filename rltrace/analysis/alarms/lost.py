"""Processes that fell silent in the middle of their work, or that a signal ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from rltrace.analysis.alarms.alarm import NAMED, STALL_TIMES, Said, alarm, grave, note
from rltrace.analysis.coverage import known_until
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stalls import usual_step_s
from rltrace.trace.ends import End, read_ends
from rltrace.trace.processes import Process
from rltrace.trace.run_dir import PROCESS_FAILED
from rltrace.trace.vocabulary import Stage

_NO_HANG = (Stage.STEP, Stage.WAIT, Stage.OTHER)
_DEADLY = {
    *(signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
}


@alarm("lost process", "a process was lost")
def lost(analysis: RunAnalysis) -> Iterator[Said]:
    """Processes that fell silent in the middle of their work while others went on, as far as the
    processes are known: files are read, and brought, one after the other."""
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
        yield grave(
            f"{who} fell silent in “{names[0]}” and the job went on for more than "
            f"{STALL_TIMES:g} usual steps"
        )


@alarm("failed process", "a process failed")
def failed(analysis: RunAnalysis) -> Iterator[Said]:
    """Processes that an exception ended. The job's own says how the job ended."""
    processes = {process.who: process for process in analysis.run.processes}
    usual_ns = 1e9 * usual_step_s(analysis.steps, analysis.breakdown)
    for problem in analysis.run.problems:
        process = processes.get(str(problem.get("who")))
        if problem.get("what") != PROCESS_FAILED or process is None:
            continue
        if process.pid == analysis.run.meta.get("command_pid"):
            continue
        says = f"{_who(process)} failed: {problem.get('detail')}"
        real_ns = problem.get("real_ns")
        left_ns = analysis.activity.last_ns - real_ns if isinstance(real_ns, int) else 0
        if left_ns > STALL_TIMES * usual_ns:
            yield grave(f"{says}; the job went on without it for {left_ns / 1e9:.0f} s")
        else:
            yield note(says)


@alarm("killed process", "a process was killed")
def killed(analysis: RunAnalysis) -> Iterator[Said]:
    """Processes that a signal ended which nobody of the job had sent: the kernel where memory ran
    out, a person, a fault of their own."""
    run, activity = analysis.run, analysis.activity
    ends = read_ends(run.path, run.processes)
    at_work = {s.process: s for s in activity.open_spans if s.stage not in _NO_HANG}
    named = []
    for process in run.processes:
        end = ends.get(process.number, End(0, False))
        if end.asked or not (end.signal in _DEADLY or end.why):
            continue
        inside = at_work.get(process.number)
        where = f" in “{inside.name}”" if inside is not None else ""
        named.append(f"{_who(process)} {_by(end)}{where}")
    if not named:
        return
    n, shown = len(named), ", ".join(named[:NAMED]) + " …" * (len(named) > NAMED)
    what = "process of the job was" if n == 1 else "processes of the job were"
    yield note(f"{n} {what} killed: {shown}")


def _who(process: Process) -> str:
    who = process.role or (f"child of {process.child_of}" if process.child_of else "process")
    return f"{who} (pid {process.pid} on {process.host})"


def _by(end: End) -> str:
    if end.why == "memory":
        return "by Ray, as the memory of its node ran out"
    if end.why:
        return "with its node" if end.why == "node" else "(Ray does not say by whom)"
    return f"by {signal.Signals(end.signal).name}"
