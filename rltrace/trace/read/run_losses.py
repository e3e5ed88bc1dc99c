"""What a run lost: files that cannot be read, processes that ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.trace.errors import RltraceError
from rltrace.trace.job_devices import AGENT
from rltrace.trace.read.processes import TracedProcess
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.run_dir import ENDS
from rltrace.trace.schema import TABLES
from rltrace.trace.untrusted_files import own_files, own_lines, parsed


@dataclass(frozen=True)
class Damaged:
    """A process with cut or damaged files, and their tables. `pid` is -1 where nobody said."""

    role: str
    pid: int
    host: str
    tables: tuple[str, ...]


def damaged(run: OpenedRun) -> tuple[Damaged, ...]:
    """Such processes of the job, as far as tables were read; no agents, with readings only."""
    tables: dict[str, list[str]] = {}
    for problem in run.problems:
        if problem.get("what") == "torn-file":
            table, _, name = str(problem.get("target", "")).partition("/")
            tables.setdefault(name.rsplit(".", 2)[0], []).append(table)
    return tuple(
        Damaged(one.role or "", one.pid, one.host, tuple(dict.fromkeys(tables[one.who])))
        for one in run.processes
        if one.who in tables and one.role != AGENT
    )


def unreadable(run: OpenedRun) -> str | None:
    """Why nothing is left to be told of a run, in one sentence: no row of its processes can be
    read, or no process is known and it is not known to be going on. Else None."""
    tables = [name for name in TABLES if name != "samples"]
    if any(run.has_rows(name) for name in tables):
        return None
    for name in tables:
        run.rows(name)  # tells what is wrong with its files
    broken = damaged(run)
    if broken:
        torn = sorted({table for one in broken for table in one.tables})
        return (
            f"{run.path}: nothing of what was recorded can be read: the files of "
            f"{', '.join(torn)} are damaged"
        )
    lives = None if run.meta.get("end_real_ns") else run.goes_on
    if run.processes or lives:
        return None
    begun = lives is None and not run.meta.get("end_real_ns")
    return (
        f"{run.path} holds no process and no row: its files are missing, "
        f"{'it has only begun, ' * begun}or the command started no Python that could be traced "
        "(`rltrace doctor`)"
    )


def check_readable(run: OpenedRun) -> None:
    """Errors: `RltraceError` for a run that is `unreadable`."""
    if (why := unreadable(run)) is not None:
        raise RltraceError(why)


REASONS = ("memory", "node", "process")


@dataclass(frozen=True)
class End:
    """How a process ended: with exit `code`, by `signal` (0: by itself, or nobody knows), which its
    parent sent where it was `asked` (and it died of no other). `why`: what Ray said of an actor
    that nobody ended: "memory" (it ran out), "node" (that died) or "process" (it died itself)."""

    signal: int
    asked: bool
    why: str = ""
    code: int = 0


def read_ends(run: Path, processes: Iterable[TracedProcess]) -> dict[int, End]:
    """The known ends, by number of the process. What cannot be read is skipped."""
    processes = list(processes)
    speakers, began = {process.who: process for process in processes}, _began(processes)
    signals: dict[int, tuple[list[int], list[int]]] = {}  # that it was sent, and that it died of
    why: dict[int, str] = {}
    codes: dict[int, int] = {}
    for path in own_files(run / ENDS, ".jsonl")[0]:
        speaker = speakers.get(path.stem)
        if speaker is None:
            continue
        for line in own_lines(path):
            try:
                told: dict[str, Any] = {**parsed(line)}
                number_of = _meant(began, speaker, told)
                number, asked = int(told["signal"]), told["asked"] is True
            except (ValueError, KeyError, TypeError, OverflowError):
                continue
            if number_of is None:
                continue
            signals.setdefault(number_of, ([], []))[not asked].append(number)
            if isinstance(code := told.get("code"), int):
                codes[number_of] = code
            if told.get("why") in REASONS:
                why[number_of] = str(told["why"])
    found = {}
    for number_of, (sent, died_of) in signals.items():
        seen = [number for number in died_of if number]
        asked = bool(sent) and (not seen or seen[-1] in sent)
        signal = [0, *filter(None, sent), *seen][-1]
        found[number_of] = End(signal, asked, why.get(number_of, ""), codes.get(number_of, 0))
    return found


_Began = Mapping[tuple[Any, ...], list[tuple[int, int]]]
"""Starts and numbers of processes, by the ways to speak of them."""


def _began(processes: Iterable[TracedProcess]) -> _Began:
    found: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    for process in processes:
        started, actor = process.facts.get("start_ns"), str(process.facts.get("actor_id") or "")
        if isinstance(started, int):
            found[process.node, process.host, process.pid].append((started, process.number))
            for pid in (None, process.pid) if actor else ():
                found[actor, pid].append((process.start_ns, process.number))
    return found


def _meant(began: _Began, speaker: TracedProcess, told: Mapping[str, Any]) -> int | None:
    """Whom a line is about: the last that began before it was said, as pids are used again, and Ray
    starts an actor again under its id. Errors: ValueError, KeyError, TypeError."""
    key: tuple[Any, ...]
    if "actor" in told:
        key, until_ns = (told["actor"], told.get("pid")), int(told["real_ns"])
    else:
        key = (speaker.node, speaker.host, int(told["pid"]))
        until_ns = int(told["monotonic_ns"])
    return max((one for one in began.get(key, ()) if one[0] <= until_ns), default=(0, None))[1]
