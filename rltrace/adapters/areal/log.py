"""AReaL: its perf tracer's events, and its session traces.

Events are timed from when their process began to trace, so only one process's can be read at once;
sessions by the wall clock, so those of all ranks are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rltrace.adapters.log_table import (
    LoggedProcess,
    PlacedRow,
    PlacedSpan,
    is_real_ns,
    lane_of,
    ns,
    whole,
)
from rltrace.hooks.sample_api import identify
from rltrace.trace.vocabulary import Fate, Finish, Stage

_PHASES = {"generate": Stage.ROLLOUT, "reward": Stage.REWARD, "toolcall": Stage.ENV}
_FINISHES = {"accepted": Finish.STOP, "failed": Finish.ERROR, "dropped": Finish.ABORT}
_DROPPED = {"rejected": Fate.FILTERED, "dropped": Fate.STALE, "failed": Fate.FAILED}


def steps(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A step of each number: from the first to the last of its `train.*` events."""
    extents: dict[tuple[str, int], list[float]] = {}
    for event in events:
        arguments = event.get("args")
        number = whole(arguments.get("global_step")) if isinstance(arguments, dict) else None
        of_trainer = str(event.get("name", "")).startswith("train.")
        if event.get("ph") != "X" or number is None or not of_trainer:
            continue
        start: Any = event.get("ts")
        length: Any = event.get("dur")
        if ns(start, 1e3) is not None and ns(length, 1e3) is not None:
            extent = extents.setdefault((str(event.get("pid")), number), [start, start + length])
            extent[:] = [min(extent[0], start), max(extent[1], start + length)]
    for (pid, number), (began, ended) in extents.items():
        where = {"pid": pid, "tid": "steps", "ts": began, "dur": ended - began}
        yield {"ph": "X", "name": "step", "args": {"global_step": number}, **where}


def sessions(found: list[dict[str, Any]]) -> Iterator[PlacedSpan | PlacedRow | str]:
    """The phases of each session and its sample; a text is to be said of them."""
    unfinished = 0
    for session in found:
        if not is_real_ns(ns(session.get("submit_ts")) or 0):
            continue
        unfinished += ns(session.get("finalized_ts")) is None
        rank, role = session.get("rank"), str(session.get("role") or "rollout")
        process = LoggedProcess(f"rank {rank}", role, rank=whole(rank))
        yield from _phases(session, process)
        yield from _rows(session, process)
    if unfinished:
        yield f"{unfinished} sessions that had not ended: the phases that had are kept"


def _phases(session: dict[str, Any], process: LoggedProcess) -> Iterator[PlacedSpan]:
    phases = session.get("phases")
    for name, entries in (phases if isinstance(phases, dict) else {}).items():
        stage = _PHASES.get(name)
        if stage is None or not isinstance(entries, list):
            continue
        for entry in entries:
            times = entry if isinstance(entry, dict) else {}
            start_ns, end_ns = ns(times.get("start_ts")), ns(times.get("end_ts"))
            if start_ns is not None and end_ns is not None:
                lane = lane_of(session.get("session_id"))
                yield PlacedSpan(process, lane, name, stage, start_ns, end_ns)


def _rows(session: dict[str, Any], process: LoggedProcess) -> Iterator[PlacedRow]:
    """The trajectory, and what became of it where that is told: nothing says what was trained."""
    number = identify(f"areal session {session.get('rank')} {session.get('session_id')}")
    columns = {
        "start_ns": ns(session["submit_ts"]) or 0,
        "trajectory": number,
        "group": identify(f"areal task {session.get('task_id')}"),
    }
    ended_ns, status = ns(session.get("finalized_ts")), str(session.get("status"))
    if ended_ns is not None and ended_ns >= columns["start_ns"]:
        columns["end_ns"] = ended_ns
    if status in _FINISHES:
        columns["finish"] = int(_FINISHES[status])
    tools_ns = ns(session.get("toolcall_s"))
    if tools_ns is not None and tools_ns >= 0:
        columns["env_ns"] = tools_ns
    yield PlacedRow(process, "trajectories", columns)
    if status in _DROPPED and "end_ns" in columns:
        fate = {"time_ns": columns["end_ns"], "fate": int(_DROPPED[status])}
        yield PlacedRow(process, "uses", {"trajectory": number, **fate})
