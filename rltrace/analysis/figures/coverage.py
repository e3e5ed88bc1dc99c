"""What the trace does not show and why, and what tracing cost."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.process_intervals import TABLE_OF, Activity, OpenSpan
from rltrace.analysis.timeline.steps import step_errors
from rltrace.trace import run_dir
from rltrace.trace.job_devices import AGENT
from rltrace.trace.liveness import is_brought
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.read.run_losses import Damaged, damaged, read_ends
from rltrace.trace.run_dir import COUNTED
from rltrace.trace.schema import CAPTURED_TOKENS
from rltrace.trace.vocabulary import STAGE_SYMBOLS, Stage, word

_MANY = 8
_TOLD_BY_ALARMS = (
    *(run_dir.STEP_FAILED, run_dir.PROCESS_FAILED, run_dir.THREAD_FAILED),
    *(run_dir.ELSEWHERE, run_dir.NOT_WHOLE, run_dir.PACK_LOST, run_dir.STUCK),
)
NOT_LOGGED = "not in the log"
"""Kind of what an imported log cannot tell; of a stage it is the stage's reason."""


@dataclass(frozen=True)
class Unseen:
    """A stage without a single span, and what is known of the reason."""

    stage: Stage
    name: str
    symbol: str
    reason: str


@dataclass(frozen=True)
class InProgress:
    """Open spans of one name; times are of the first of them."""

    name: str
    stage: str
    processes: int
    spans: int
    since_ns: int
    open_s: float
    last_sign_s: float
    role: str


@dataclass(frozen=True)
class Problem:
    """Problems of one kind and detail: how often (`at_least`: or more), and where first."""

    what: str
    count: int
    targets: tuple[str, ...]
    more_targets: int
    detail: str
    at_least: bool = False


@dataclass(frozen=True)
class StoppedProcess:
    """A process that recorded nothing more from a moment on, and why; NaN and -1: unknown."""

    role: str
    pid: int
    host: str
    after_start_s: float
    detail: str


@dataclass(frozen=True)
class Coverage:
    """What was not seen. `clock_bound_ns` is the worst alignment of a node to the reference (0: one
    node; -1: unknown). `never_hooked` are targets of the user's hooks that no process put in place.
    """

    unseen: tuple[Unseen, ...]
    in_progress: tuple[InProgress, ...]
    problems: tuple[Problem, ...]
    stopped: tuple[StoppedProcess, ...]
    damaged: tuple[Damaged, ...]
    never_hooked: tuple[str, ...]
    clock_bound_ns: int


def coverage(analysis: RunAnalysis) -> Coverage:
    """Every stage that has a symbol is expected, unless the job is no RL."""
    run, activity = analysis.run, analysis.activity
    bounds = [process.clock_bound_ns for process in run.processes]
    return Coverage(
        unseen=tuple(
            Unseen(stage, word(stage), symbol, _reason(run, stage))
            for stage, symbol in ({} if analysis.no_rollout else STAGE_SYMBOLS).items()
            if stage not in activity.spans_of_stage and stage not in activity.from_tables
        ),
        in_progress=_in_progress(analysis),
        problems=_problems([p for p in run.problems if not _is_reason(p)], run)
        + _in_background(run, activity),
        stopped=_stopped(run),
        damaged=damaged(run),
        never_hooked=never_hooked(run),
        clock_bound_ns=-1 if -1 in bounds else max(bounds, default=0),
    )


def _reason(run: OpenedRun, stage: Stage) -> str:
    missed = [p for p in run.problems if p.get("stage") == word(stage)]
    if missed:
        what, target = missed[0].get("what", "problem"), missed[0].get("target", "")
        return f"{what}: {target}".rstrip(": ")
    if stage in TABLE_OF:
        table = TABLE_OF[stage]
        if run.ask(f"select 1 from raw_{table} where start_ns > 0 limit 1"):
            return f"{table} were recorded, but none with its duration"
    told = "select 1 from raw_trajectories where start_ns > 0 and env_ns > 0 limit 1"
    if stage is Stage.ENV and run.ask(told):
        return "no span of its own; trajectories state their tool time"
    return "no hook or span recorded it; the job may have no such stage"


def _in_progress(analysis: RunAnalysis) -> tuple[InProgress, ...]:
    """The open spans, but for steps that an exception ended, and processes that the job ended."""
    run, errors = analysis.run, step_errors(analysis.run)
    ended = {start for number, start in analysis.steps.in_progress if number in errors}
    asked = {number for number, end in read_ends(run.path, run.processes).items() if end.asked}
    roles = {process.number: process.role or "" for process in run.processes}
    groups: dict[tuple[str, str, str], list[OpenSpan]] = defaultdict(list)
    for span in analysis.activity.open_spans:
        left = span.stage is Stage.STEP and span.start_ns in ended
        if span.process not in asked and not left:
            groups[span.name, word(span.stage), roles.get(span.process, "")].append(span)
    found = []
    for (name, stage, role), members in groups.items():
        first = min(members, key=lambda span: span.start_ns)
        known_ns = known_until(run, first, analysis.until_ns)
        open_s, sign_s = ((ns - first.start_ns) / 1e9 for ns in (known_ns, first.last_sign_ns))
        counts = len({span.process for span in members}), len(members)
        found.append(InProgress(name, stage, *counts, first.start_ns, open_s, sign_s, role))
    return tuple(sorted(found, key=lambda group: group.since_ns))


def _is_reason(problem: dict[str, Any]) -> bool:
    """Whether it is said elsewhere: as the reason of an unseen stage, or as an alarm."""
    what = problem.get("what")
    return what in _TOLD_BY_ALARMS or (what == NOT_LOGGED and "stage" in problem)


def _problems(problems: list[dict[str, Any]], run: OpenedRun) -> tuple[Problem, ...]:
    hosts = {process.node: process.host for process in run.processes}
    alike: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for problem in problems:
        kind = str(problem.get("what", "problem")), str(problem.get("detail") or "")
        alike[kind].append(problem)
    found = []
    for (what, detail), ones in alike.items():
        times = [n if isinstance(n := one.get("times"), int) else 1 for one in ones]
        named = [str(one["target"]) for one in ones if one.get("target")]
        where = list(dict.fromkeys(hosts.get(target, target) for target in named))
        more, often = max(0, len(where) - _MANY), max(times) >= COUNTED
        found.append(Problem(what, sum(times), tuple(where[:_MANY]), more, detail, often))
    return tuple(sorted(found, key=lambda one: -one.count))


def _in_background(run: OpenedRun, activity: Activity) -> tuple[Problem, ...]:
    roles = {process.number: process.role or f"pid {process.pid}" for process in run.processes}
    why = "it is in {} in the background, whether a sample waits for it or not"
    return tuple(
        Problem("left out of the stages", 1, (roles.get(of, "?"),), 0, why.format(word(stage)))
        for stage, of in activity.background
    )


def _stopped(run: OpenedRun) -> tuple[StoppedProcess, ...]:
    processes = {process.who: process for process in run.processes}
    start = run.meta.get("start_real_ns")
    found = []
    for problem in (p for p in run.problems if p.get("what") == run_dir.RECORDING_STOPPED):
        process = processes.get(str(problem.get("who")))
        at, detail = problem.get("real_ns"), str(problem.get("detail") or "")
        after_start_s = math.nan
        if isinstance(start, int) and isinstance(at, int) and at >= start:
            after_start_s = (at - start) / 1e9
        whose = (process.role or "", process.pid, process.host) if process else ("", -1, "")
        found.append(StoppedProcess(*whose, after_start_s, detail))
    return tuple(found)


def never_hooked(run: OpenedRun) -> tuple[str, ...]:
    told = [process.facts["hooks"] for process in run.processes if "hooks" in process.facts]
    asked = (run.meta.get("settings") or {}).get("hooks")
    if not told or not isinstance(asked, list):
        return ()
    placed = {str(target) for hooks in told if isinstance(hooks, list) for target in hooks}
    targets = dict.fromkeys(str(hook).partition("=")[0] for hook in asked)
    return tuple(target for target in targets if target not in placed)


@dataclass(frozen=True)
class Gone:
    host: str
    since_ns: int


@dataclass(frozen=True)
class AsOf:
    """A run that goes on: it is known until `at_ns` (Unix ns), `ago_s` before it was opened.
    `from_url`: brought from there; nothing has come from `silent_nodes` for long."""

    at_ns: int
    ago_s: float
    from_url: bool
    silent_nodes: tuple[Gone, ...]


def as_of(run: OpenedRun, recorded_until_ns: int) -> AsOf | None:
    """None for a run that has ended, or may have."""
    brought = is_brought(run.path)
    if run.meta.get("end_real_ns") is not None or not (brought or run.goes_on):
        return None
    ago_s = max(0, run.opened_ns - recorded_until_ns) / 1e9
    gone = tuple(Gone(node.host, node.until_ns) for node in run.reach.gone(run.opened_ns))
    return AsOf(recorded_until_ns, ago_s, brought, gone)


def known_until(run: OpenedRun, span: OpenSpan, until_ns: int) -> int:
    """Until when a span is known to have been open: a node that ships may have more to come."""
    node = {process.number: process.node for process in run.processes}.get(span.process, "")
    return run.reach.known_ns(node, span.last_sign_ns, until_ns)


def step_known_until(run: OpenedRun, activity: Activity, start_ns: int, until_ns: int) -> int:
    """The same of the step in progress that began then. It was over when an exception or a signal
    had ended the job, and nothing was recorded any more: what follows is the interpreter's end."""
    steps = [s for s in activity.open_spans if s.stage is Stage.STEP and s.start_ns == start_ns]
    known_ns = min((known_until(run, span, until_ns) for span in steps), default=until_ns)
    own = run_dir.PROCESS_FAILED, str(run.meta.get("command_pid"))
    told = [run.meta.get("signalled_real_ns")]
    for problem in run.problems:
        what = problem.get("what")
        if what == run_dir.STEP_FAILED or (what, problem.get("target")) == own:
            told.append(problem.get("real_ns"))
    ends = [ns for ns in told if isinstance(ns, int) and ns > start_ns]
    over = bool(ends and run.meta.get("exit_code"))
    return min(known_ns, max(activity.last_ns, *ends)) if over else known_ns


def holds_token_ids(run: OpenedRun) -> bool | None:
    """None where the run holds none and nobody has asked."""
    if run.has_rows(CAPTURED_TOKENS.name):
        return True
    return False if (run.meta.get("settings") or {}).get(run_dir.CAPTURE_TOKENS) is True else None


SPAN_COST_NS, ROW_COST_NS, TOKEN_COST_NS = 2000.0, 10_000.0, 200.0
"""Usual CPU time in a job, where our code is cold: of a span, and of another row or a captured
token where the process has not timed the calls that its hooks read: one that has tells in its file
what they took, and of how many events (`benchmarks.overhead` holds the sum against a job)."""


@dataclass(frozen=True)
class OwnCost:
    """CPU time, `event_cost_ns` in the mean of `events`; `calibrated`: processes have timed it. It
    can have delayed the job by `cpu_s` at most, as if no role worked beside another: the sum over
    roles of their dearest process. `share` is its part of the job's time."""

    events: int
    processes: int
    event_cost_ns: float
    calibrated: bool
    cpu_s: float
    share: float


def own_cost(run: OpenedRun, activity: Activity, recorded_until_ns: int) -> OwnCost:
    """The cost of tracing `run`."""
    spans = Counter(activity.spans_of_process)
    rows = Counter[int](dict(run.ask("select process, sum(n)::bigint from event_rows group by 1")))
    tokens = run.rows_of_processes(CAPTURED_TOKENS.name) if holds_token_ids(run) else Counter()
    events, calibrated, since_ns = 0, False, [recorded_until_ns]
    cost_ns, of_role = dict[int, float](), dict[str, float]()
    for process in run.processes:
        number, role, told = process.number, process.role or process.child_of, process.facts
        count = spans[number] + rows[number]
        if role == AGENT or run.meta.get("imported") or not count:
            continue
        then, took_ns = told.get("readers_events") or 0, told.get("readers_cpu_ns") or 0
        rows_ns = rows[number] * ROW_COST_NS + tokens[number] * TOKEN_COST_NS
        if then > 0 and took_ns > 0:
            calibrated, rows_ns = True, took_ns * count / then
        cost_ns[number] = spans[number] * SPAN_COST_NS + rows_ns
        of_role[str(role)] = max(of_role.get(str(role), 0.0), cost_ns[number])
        events += count
        since_ns += [max(process.start_ns, run.since_ns)] if process.start_ns > 0 else []
    cpu_ns, wall_ns = sum(of_role.values()), recorded_until_ns - min(since_ns)
    return OwnCost(
        events=events,
        processes=len(cost_ns),
        event_cost_ns=sum(cost_ns.values()) / events if events else SPAN_COST_NS,
        calibrated=calibrated,
        cpu_s=cpu_ns / 1e9,
        share=cpu_ns / wall_ns if wall_ns > 0 else float("nan"),
    )
