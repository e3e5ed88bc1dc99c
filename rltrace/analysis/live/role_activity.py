"""What processes of each role do now, and which are dead."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np

from rltrace.analysis.live.followed_run import Watched
from rltrace.analysis.live.recent_rows import each
from rltrace.analysis.live.run_meters import lengths
from rltrace.analysis.live.snapshot import Dead, InFlight, RoleNow, SilentProcess
from rltrace.analysis.timeline.intervals import between, union
from rltrace.analysis.timeline.process_intervals import CODES, Activity
from rltrace.trace.job_devices import AGENT
from rltrace.trace.read.processes import TracedProcess
from rltrace.trace.read.run_follower import Rows
from rltrace.trace.vocabulary import Stage, stage_of, word

OTHER = "other"
IDLE = "idle"


def role_of(process: TracedProcess) -> str:
    """The role of a process, or of the one that started it."""
    return process.role or process.child_of or OTHER


def roles_now(run: Watched, activity: Activity, since_ns: int, now_ns: int) -> tuple[RoleNow, ...]:
    """The roles, in the order in which they appeared; `activity` is that between two moments."""
    roles = {
        process.number: role_of(process)
        for process in run.follower.processes
        if process.role != AGENT and process.number in run.follower.recorded
    }
    alive, doing = run.alive, _doing(run.going_on("spans"), run.going_on("trajectories"))
    busy_ns = _busy_ns(roles, activity, since_ns, now_ns)
    found = []
    for role in dict.fromkeys(roles.values()):
        numbers = [number for number, its in roles.items() if its == role]
        living = [n for n in numbers if alive.get(n) is not False]
        length_ns = max(1, (now_ns - since_ns) * max(1, len(living)))
        found.append(
            RoleNow(
                role=role,
                processes=len(numbers),
                living=sum(alive.get(n) is True for n in numbers),
                unknown=sum(alive.get(n) is None for n in numbers),
                doing=dict(Counter(doing.get(n, IDLE) for n in living)),
                busy_shares={s: min(1.0, ns / length_ns) for s, ns in busy_ns[role].items()},
            )
        )
    return tuple(found)


def _doing(open_spans: Rows, generating: Rows) -> dict[int, str]:
    """The stage that each process is in: of its innermost open spans the latest that is work."""
    found: dict[int, tuple[bool, int, str]] = {}
    innermost: dict[tuple[int, int], tuple[int, Stage]] = {}  # by lane
    for number, lane, start, code in each(open_spans, "process", "lane", "start_ns", "stage"):
        stage = stage_of(code)
        if stage is not Stage.STEP and start >= innermost.get((number, lane), (0, stage))[0]:
            innermost[number, lane] = (start, stage)
    for (number, _), (start, stage) in innermost.items():
        rank = (stage not in (Stage.WAIT, Stage.OTHER), start, word(stage))
        found[number] = max(found.get(number, rank), rank)
    doing = {number: name for number, (_, _, name) in found.items()}
    generates = set(generating["process"].tolist())
    return doing | {n: word(Stage.ROLLOUT) for n in generates if not found.get(n, (False,))[0]}


def _busy_ns(
    roles: dict[int, str], activity: Activity, since_ns: int, now_ns: int
) -> dict[str, Counter[str]]:
    """Nanoseconds of the processes of each role in each stage between two moments."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for start, end, process, pieces in activity.of_processes(since_ns, now_ns):
        merged = union(replace(pieces, group=process * CODES + pieces.group))
        shown = between(merged, max(start, since_ns), min(end, now_ns))
        for group, ns in lengths(shown).items():
            if (number := group // CODES) in roles:
                found[roles[number]][word(Stage(group % CODES))] += ns
    return found


def slowest(run: Watched, generating: Rows, most: int) -> tuple[InFlight, ...]:
    oldest = generating.where(np.argsort(generating["start_ns"], kind="stable")[:most])
    columns = ("process", "trajectory", "start_ns", "first_token_ns", "first_version")
    processes, found = run.follower.processes, []
    for number, trajectory, start_ns, first_ns, version in each(oldest, *columns):
        role, rank, *_ = _who(processes[number])
        elapsed_s = (run.now_ns - start_ns) / 1e9
        found.append(InFlight(trajectory, role, rank, elapsed_s, first_ns > 0, version))
    return tuple(found)


def stopped_recording(run: Watched) -> tuple[SilentProcess, ...]:
    """Processes that stopped recording, in the order in which they said so."""
    processes = {process.who: process for process in run.follower.processes}
    return tuple(
        SilentProcess(
            *_who(processes.get(who)),
            at_ns=at_ns,
            silent_s=math.nan if at_ns is None else max(0, run.until_ns - at_ns) / 1e9,
            detail=detail,
        )
        for who, (at_ns, detail) in run.follower.stopped().items()
    )


def dead_in_the_middle(run: Watched) -> tuple[Dead, ...]:
    innermost: dict[int, tuple[int, int]] = {}
    for number, start, name in each(run.unended("spans"), "process", "start_ns", "name"):
        if run.alive.get(number) is False:
            innermost[number] = max(innermost.get(number, (0, 0)), (start, name))
    return tuple(
        Dead(*_who(process), doing=run.follower.name(innermost[process.number][1]))
        for process in run.follower.processes
        if process.number in innermost
    )


def _who(process: TracedProcess | None) -> tuple[str, int | None, int, str]:
    if process is None:
        return OTHER, None, -1, ""
    return role_of(process), process.rank, process.pid, process.host
