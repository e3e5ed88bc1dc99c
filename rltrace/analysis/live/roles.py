"""What the processes of each role are doing now, and which of them are no more."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.intervals import union
from rltrace.analysis.live.snapshot import Dead, InFlight, RoleNow, Stopped
from rltrace.analysis.live.watched import Watched
from rltrace.trace.follow import Rows
from rltrace.trace.given import AGENT
from rltrace.trace.processes import Process
from rltrace.trace.vocabulary import Stage, stage_of, word

OTHER = "other"
IDLE = "idle"
_NO_WORK = (Stage.WAIT, Stage.OTHER)


def role_of(process: Process) -> str:
    """The role of a process, or of the one that started it."""
    return process.role or process.child_of or OTHER


def roles_now(run: Watched, activity: Activity, since_ns: int, now_ns: int) -> tuple[RoleNow, ...]:
    """The roles, in the order in which they appeared; `activity` is that between two moments."""
    members: dict[str, list[int]] = defaultdict(list)
    for process in run.follower.processes:
        if process.role != AGENT and process.number in run.follower.recorded:
            members[role_of(process)].append(process.number)
    alive = run.alive
    doing = _doing(run.going_on("spans"), run.going_on("trajectories"))
    busy_ns = _busy_ns(activity, since_ns, now_ns)
    found = []
    for role, numbers in members.items():
        living = [n for n in numbers if alive.get(n) is not False]
        length_ns = max(1, (now_ns - since_ns) * max(1, len(living)))
        spent: Counter[str] = Counter()
        for number in numbers:
            spent.update(busy_ns.get(number, {}))
        found.append(
            RoleNow(
                role=role,
                processes=len(numbers),
                living=sum(alive.get(n) is True for n in numbers),
                unknown=sum(alive.get(n) is None for n in numbers),
                doing=dict(Counter(doing.get(n, IDLE) for n in living)),
                busy={stage: min(1.0, ns / length_ns) for stage, ns in spent.items()},
            )
        )
    return tuple(found)


def _doing(open_spans: Rows, generating: Rows) -> dict[int, str]:
    """The stage that each process is in: of its innermost open spans the latest that is work."""
    found: dict[int, tuple[bool, int, str]] = {}
    lanes: dict[tuple[int, int], tuple[int, Stage]] = {}
    columns = (open_spans[name] for name in ("process", "lane", "start_ns", "stage"))
    for number, lane, start, code in zip(*(c.tolist() for c in columns), strict=True):
        stage = stage_of(code)
        if stage is not Stage.STEP and start >= lanes.get((number, lane), (0, stage))[0]:
            lanes[number, lane] = (start, stage)
    for (number, _), (start, stage) in lanes.items():
        rank = (stage not in _NO_WORK, start, word(stage))
        found[number] = max(found.get(number, rank), rank)
    doing = {number: name for number, (_, _, name) in found.items()}
    for number in set(generating["process"].tolist()):
        works = found.get(number, (False,))[0]
        doing[number] = doing[number] if works else word(Stage.ROLLOUT)
    return doing


def _busy_ns(activity: Activity, since_ns: int, now_ns: int) -> dict[int, Counter[str]]:
    """Nanoseconds of each process in each stage between two moments."""
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for start, end, process, pieces in activity.of_processes(since_ns, now_ns):
        left, right = max(start, since_ns), min(end, now_ns)
        merged = union(replace(pieces, group=process * len(Stage) + pieces.group))
        length = merged.end.clip(left, right) - merged.start.clip(left, right)
        for one, ns in zip(merged.group.tolist(), length.tolist(), strict=True):
            if ns > 0:
                found[one // len(Stage)][word(Stage(one % len(Stage)))] += ns
    return found


def slowest(run: Watched, generating: Rows, most: int) -> tuple[InFlight, ...]:
    """The oldest trajectories that are being generated, the oldest first."""
    found = []
    for place in np.argsort(generating["start_ns"], kind="stable")[:most]:
        process = run.follower.processes[int(generating["process"][place])]
        found.append(
            InFlight(
                trajectory=int(generating["trajectory"][place]),
                role=role_of(process),
                rank=process.rank,
                seconds=(run.now_ns - int(generating["start_ns"][place])) / 1e9,
                has_first_token=bool(generating["first_token_ns"][place] > 0),
                first_version=int(generating["first_version"][place]),
            )
        )
    return tuple(found)


def stopped_recording(run: Watched) -> tuple[Stopped, ...]:
    """Processes that stopped recording, in the order in which they said so."""
    processes = {process.who: process for process in run.follower.processes}
    found = []
    for who, (at_ns, detail) in run.follower.stopped().items():
        process = processes.get(who)
        found.append(
            Stopped(
                role=role_of(process) if process else OTHER,
                rank=process.rank if process else None,
                pid=process.pid if process else -1,
                host=process.host if process else "",
                at_ns=at_ns,
                for_s=math.nan if at_ns is None else max(0, run.until_ns - at_ns) / 1e9,
                detail=detail,
            )
        )
    return tuple(found)


def dead_in_the_middle(run: Watched) -> tuple[Dead, ...]:
    """Processes that have ended with a span open."""
    innermost: dict[int, tuple[int, int]] = {}
    open_spans = run.unended("spans")
    columns = (open_spans[name] for name in ("process", "start_ns", "name"))
    for number, start, name in zip(*(c.tolist() for c in columns), strict=True):
        if run.alive.get(number) is False:
            innermost[number] = max(innermost.get(number, (0, 0)), (start, name))
    return tuple(
        Dead(
            role=role_of(process),
            rank=process.rank,
            pid=process.pid,
            host=process.host,
            doing=run.follower.name(innermost[process.number][1]),
        )
        for process in run.follower.processes
        if process.number in innermost
    )
