"""What the trace does not show, and why: stages never seen, spans never ended, files torn."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rltrace.analysis.activity import TABLE_OF, Activity, OpenSpan
from rltrace.analysis.damage import Damaged, damaged
from rltrace.analysis.known import known_until
from rltrace.analysis.partial import PARTIAL
from rltrace.hooks.recorder import COUNTED
from rltrace.trace.dropped import Dropped
from rltrace.trace.run_dir import RECORDING_STOPPED
from rltrace.trace.sampled import only_some
from rltrace.trace.vocabulary import STAGE_SYMBOLS, Stage, word

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_MANY = 8
STEP_FAILED = "step-failed"
"""Kind of a step that an exception left, whose number is its target (`Health` says so)."""
NOT_LOGGED = "not in the log"
"""Kind of what an imported log cannot tell; where that is of a stage, it is the stage's reason."""


@dataclass(frozen=True)
class Unseen:
    """A stage of the vocabulary without a single span, and what is known of the reason."""

    stage: Stage
    name: str
    symbol: str
    reason: str


@dataclass(frozen=True)
class InProgress:
    """Open spans of one name: when the first began and how long that was before the recording
    ended, as far as it is known to have been open (`for_s`); `alive_s` is how long after the
    beginning the process gave its last sign."""

    name: str
    stage: str
    processes: int
    spans: int
    since_ns: int
    for_s: float
    alive_s: float
    role: str


@dataclass(frozen=True)
class Problem:
    """Problems of one kind and detail: how often (`at_least`: or more often), and where (the first
    few and how many more)."""

    what: str
    count: int
    targets: tuple[str, ...]
    more_targets: int
    detail: str
    at_least: bool = False


@dataclass(frozen=True)
class Stopped:
    """A process that recorded nothing more from a moment on (`after_s` since the run's start, NaN
    where that is not known), and why; `pid` is -1 where nobody said."""

    role: str
    pid: int
    host: str
    after_s: float
    detail: str


@dataclass(frozen=True)
class Coverage:
    """What was not seen. `clock_bound_ns` is the worst alignment of a node to the reference (0: one
    node; -1: a node that could not be aligned). `never_hooked` are the targets of the user's hooks
    that no process put in place, `dropped` are details that were dropped to keep the run small."""

    unseen: tuple[Unseen, ...]
    in_progress: tuple[InProgress, ...]
    problems: tuple[Problem, ...]
    stopped: tuple[Stopped, ...]
    damaged: tuple[Damaged, ...]
    never_hooked: tuple[str, ...]
    clock_bound_ns: int
    dropped: Dropped | None = None


def coverage(run: Run, activity: Activity, recorded_until_ns: int) -> Coverage:
    """What `run` does not show. Every stage that has a symbol is expected."""
    bounds = [process.clock_bound_ns for process in run.processes]
    return Coverage(
        unseen=tuple(
            Unseen(stage, word(stage), symbol, _reason(run, stage))
            for stage, symbol in STAGE_SYMBOLS.items()
            if stage not in activity.spans_of_stage and stage not in activity.from_tables
        ),
        in_progress=_in_progress(run, activity.open_spans, recorded_until_ns),
        problems=_problems([p for p in run.problems if not _is_reason(p)], run)
        + _in_background(run, activity),
        stopped=_stopped(run),
        damaged=damaged(run),
        never_hooked=_never_hooked(run),
        clock_bound_ns=-1 if -1 in bounds else max(bounds, default=0),
        dropped=run.dropped,
    )


def _reason(run: Run, stage: Stage) -> str:
    missed = [p for p in run.problems if p.get("stage") == word(stage)]
    if missed:
        what, target = missed[0].get("what", "problem"), missed[0].get("target", "")
        return f"{what}: {target}".rstrip(": ")
    if stage in TABLE_OF:
        table = TABLE_OF[stage]
        if (some := only_some(run.meta)) and run.has_rows(table):
            return some
        if run.ask(f"select 1 from raw_{table} where start_ns > 0 limit 1"):
            return f"{table} were recorded, but none with its duration"
    if stage is Stage.ENV:
        seen = run.sql("select count(*) from raw_trajectories where start_ns > 0 and env_ns > 0")
        if seen.fetchall()[0][0]:
            return "no span of its own; trajectories state their tool time"
    return "no hook or span recorded it; the job may have no such stage"


def _in_progress(
    run: Run, spans: tuple[OpenSpan, ...], recorded_until_ns: int
) -> tuple[InProgress, ...]:
    roles = {process.number: process.role or "" for process in run.processes}
    groups: dict[tuple[str, str, str], list[OpenSpan]] = {}
    for span in spans:
        key = (span.name, word(span.stage), roles.get(span.process, ""))
        groups.setdefault(key, []).append(span)
    found = []
    for (name, stage, role), members in groups.items():
        first = min(members, key=lambda span: span.start_ns)
        known_ns = known_until(run, first, recorded_until_ns)
        found.append(
            InProgress(
                name=name,
                stage=stage,
                processes=len({span.process for span in members}),
                spans=len(members),
                since_ns=first.start_ns,
                for_s=(known_ns - first.start_ns) / 1e9,
                alive_s=(first.last_sign_ns - first.start_ns) / 1e9,
                role=role,
            )
        )
    return tuple(sorted(found, key=lambda group: group.since_ns))


def _is_reason(problem: dict[str, Any]) -> bool:
    """Whether it is said elsewhere: as the reason of what was not seen, or as an alarm."""
    if problem.get("what") in (STEP_FAILED, *PARTIAL):
        return True
    return problem.get("what") == NOT_LOGGED and "stage" in problem


def _problems(problems: list[dict[str, Any]], run: Run) -> tuple[Problem, ...]:
    hosts = {process.node: process.host for process in run.processes}
    counts: Counter[tuple[str, str]] = Counter()
    targets: dict[tuple[str, str], dict[str, None]] = {}
    uncounted: set[tuple[str, str]] = set()
    for problem in problems:
        kind = str(problem.get("what", "problem")), str(problem.get("detail") or "")
        times = problem.get("times")
        counts[kind] += times if isinstance(times, int) else 1
        if isinstance(times, int) and times >= COUNTED:
            uncounted.add(kind)
        if problem.get("target"):
            target = str(problem["target"])
            targets.setdefault(kind, {})[hosts.get(target, target)] = None
    found = []
    for (what, detail), count in counts.most_common():
        where = tuple(targets.get((what, detail), ()))
        more = max(0, len(where) - _MANY)
        least = (what, detail) in uncounted
        found.append(Problem(what, count, where[:_MANY], more, detail, at_least=least))
    return tuple(found)


def _in_background(run: Run, activity: Activity) -> tuple[Problem, ...]:
    """What was seen, and left out of the stages."""
    roles = {process.number: process.role or f"pid {process.pid}" for process in run.processes}
    return tuple(
        Problem(
            "left out of the stages",
            1,
            (roles.get(one.process, "?"),),
            0,
            f"it is in {word(one.stage)} in the background, whether a sample waits for it or not",
        )
        for one in activity.background
    )


def _stopped(run: Run) -> tuple[Stopped, ...]:
    processes = {process.who: process for process in run.processes}
    start = run.meta.get("start_real_ns")
    found = []
    for problem in run.problems:
        if problem.get("what") != RECORDING_STOPPED:
            continue
        process = processes.get(str(problem.get("who")))
        at = problem.get("real_ns")
        after_s = math.nan
        if isinstance(start, int) and isinstance(at, int) and at >= start:
            after_s = (at - start) / 1e9
        found.append(
            Stopped(
                role=(process.role if process else None) or "",
                pid=process.pid if process else -1,
                host=process.host if process else "",
                after_s=after_s,
                detail=str(problem.get("detail") or ""),
            )
        )
    return tuple(found)


def _never_hooked(run: Run) -> tuple[str, ...]:
    """Nothing where no process tells which hooks it put in place."""
    told = [process.facts["hooks"] for process in run.processes if "hooks" in process.facts]
    asked = (run.meta.get("settings") or {}).get("hooks")
    if not told or not isinstance(asked, list):
        return ()
    placed = {str(target) for hooks in told if isinstance(hooks, list) for target in hooks}
    targets = dict.fromkeys(str(hook).partition("=")[0] for hook in asked)
    return tuple(target for target in targets if target not in placed)
