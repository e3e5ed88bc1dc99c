"""What the trace does not show, and why: stages never seen, spans never ended, files torn."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.activity import Activity, OpenSpan
from rltrace.trace.vocabulary import STAGE_SYMBOLS, Stage, word

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_MANY = 8


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
    ended (`for_s`); `alive_s` is how long after the beginning the process gave its last sign."""

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
    """Problems of one kind: what, how often, and where (the first few)."""

    what: str
    count: int
    targets: tuple[str, ...]
    detail: str


@dataclass(frozen=True)
class Coverage:
    """What was not seen. `clock_bound_ns` is the worst alignment of a node to the reference (0: one
    node; -1: a node that could not be aligned)."""

    unseen: tuple[Unseen, ...]
    in_progress: tuple[InProgress, ...]
    problems: tuple[Problem, ...]
    clock_bound_ns: int


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
        problems=_problems(run),
        clock_bound_ns=-1 if -1 in bounds else max(bounds, default=0),
    )


def _reason(run: Run, stage: Stage) -> str:
    missed = [p for p in run.problems if p.get("stage") == word(stage)]
    if missed:
        what, target = missed[0].get("what", "problem"), missed[0].get("target", "")
        return f"{what}: {target}".rstrip(": ")
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
        found.append(
            InProgress(
                name=name,
                stage=stage,
                processes=len({span.process for span in members}),
                spans=len(members),
                since_ns=first.start_ns,
                for_s=(max(recorded_until_ns, first.last_sign_ns) - first.start_ns) / 1e9,
                alive_s=(first.last_sign_ns - first.start_ns) / 1e9,
                role=role,
            )
        )
    return tuple(sorted(found, key=lambda group: group.since_ns))


def _problems(run: Run) -> tuple[Problem, ...]:
    kinds = Counter(str(problem.get("what", "problem")) for problem in run.problems)
    hosts = {process.node: process.host for process in run.processes}
    found = []
    for what, count in kinds.most_common():
        mine = [p for p in run.problems if str(p.get("what", "problem")) == what]
        named = (str(p["target"]) for p in mine if p.get("target"))
        targets = dict.fromkeys(hosts.get(target, target) for target in named)
        detail = next((str(p["detail"]) for p in mine if p.get("detail")), "")
        found.append(Problem(what, count, tuple(targets)[:_MANY], detail))
    return tuple(found)
