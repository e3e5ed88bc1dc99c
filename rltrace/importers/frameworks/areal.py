"""AReaL: its perf tracer's events, its session traces, or its figures.

Events are timed from when their process began to trace, so only one process's can be read at once;
sessions by the wall clock, so those of all ranks are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rltrace.hooks.identity import identify
from rltrace.importers.formats import chrome
from rltrace.importers.formats.json_text import read_all, read_objects
from rltrace.importers.log_detection import names_of
from rltrace.importers.log_numbers import is_real_ns, ns, whole
from rltrace.importers.log_records import files_of
from rltrace.importers.placed_events import LoggedProcess, PlacedRow, PlacedSpan
from rltrace.importers.run_writer import ImportedRun, traced_run
from rltrace.importers.scalars import Scheme
from rltrace.trace.errors import WrongUsage
from rltrace.trace.vocabulary import Fate, Finish, Stage

NAMES = names_of("areal", placement="async", steps=("global_step",))
AREAL = Scheme.of("areal")

_PHASES = {"generate": Stage.ROLLOUT, "reward": Stage.REWARD, "toolcall": Stage.ENV}
_FINISHES = {"accepted": Finish.STOP, "failed": Finish.ERROR, "dropped": Finish.ABORT}
_DROPPED = {"rejected": Fate.FILTERED, "dropped": Fate.STALE, "failed": Fate.FAILED}


def read(path: Path) -> ImportedRun:
    """Events, sessions (or a folder of these), or figures. Errors: `RltraceError` for none."""
    sessions = files_of(path, b'"submit_ts"', "sessions*.jsonl")
    if sessions:
        return _read_sessions(path, sessions)
    traces = files_of(path, b'"ph"', "traces*.jsonl")
    if not traces:
        return AREAL(path)
    if len(traces) > 1:
        said = f"{path} holds events of several processes, each with a clock of its own: name "
        raise WrongUsage(f"{said}one of {', '.join(file.name for file in traces[:5])}")
    objects = read_objects(traces[0])
    events = [*objects.objects, *_steps(objects.objects)]
    return chrome.lay_out(traces[0], replace(objects, objects=events), NAMES, "perf tracer")


def _steps(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
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


def _read_sessions(path: Path, files: list[Path]) -> ImportedRun:
    spans: list[PlacedSpan] = []
    rows: list[PlacedRow] = []
    sessions = read_all(files)
    notes: list[str] = []
    unfinished = 0
    for session in sessions.objects:
        if not is_real_ns(ns(session.get("submit_ts")) or 0):
            continue
        unfinished += ns(session.get("finalized_ts")) is None
        rank, role = session.get("rank"), str(session.get("role") or "rollout")
        process = LoggedProcess(f"rank {rank}", role, rank=whole(rank))
        spans += _phases(session, process)
        rows += _rows(session, process)
    if unfinished:
        notes.append(f"{unfinished} sessions that had not ended: the phases that had are kept")
    return traced_run(
        path,
        "areal",
        "sessions",
        "session traces",
        spans,
        sessions,
        rows=rows,
        placement="async",
        unknown=[(stage, "sessions are of samples") for stage in (Stage.TRAIN, Stage.SYNC)],
        notes=(*notes, "sessions have no step: the run is one window"),
    )


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
                lane = chrome.lane_of(session.get("session_id"))
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
