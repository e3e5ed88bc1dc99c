"""The processes of a run: clocks, parents, names.

A process that a framework starts beside its Ray actor (the core of an inference engine, its
workers, a pool of graders) has no role of its own: it has that of the one that started it, unless a
process between them is not traced (a shell). Where a process has no file, it is lost, or its
segments were copied from another run: its name tells host and start.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.metadata_validation import is_whole, problem_of, whole_text
from rltrace.trace.read.clock_alignment import NodeClock, align, pair_of, read_clock_files
from rltrace.trace.read.row_filters import of_possible_values, of_real_times
from rltrace.trace.read.segment_batches import Columns
from rltrace.trace.run_dir import CLOCKS, NAMES, RECORDING_STOPPED
from rltrace.trace.schema import Table
from rltrace.trace.untrusted_files import FollowedLines, parsed


@dataclass(frozen=True)
class TracedProcess:
    """One traced process. `number` is its `process` in every table; `start_ns` is Unix time;
    `clock_bound_ns`: how well its clock is known (0: the reference's, -1: not at all); `child_of`:
    the role of the process that started one without a role."""

    number: int
    who: str
    host: str
    node: str
    pid: int
    role: str | None
    rank: int | None
    adapter: str | None
    start_ns: int
    clock_bound_ns: int
    child_of: str | None = None
    facts: dict[str, Any] = field(repr=False, default_factory=dict)


def _text(value: object) -> str | None:
    """What a job says of itself, as text that every table takes."""
    return None if value is None else whole_text(str(value))


Facts = Mapping[str, Any]  # what a process's own file says


def roles_of_parents(processes: Mapping[str, Facts]) -> dict[str, str]:
    """For each process (`who`) without a role: that of its nearest ancestor with one."""
    under_pid: dict[tuple[str, ...], list[tuple[int, str]]] = defaultdict(list)
    for who, facts in processes.items():
        under_pid[_place(facts, "pid")].append((_start(facts), who))
    for of_pid in under_pid.values():
        of_pid.sort()
    found: dict[str, str] = {}
    for _, who in sorted((_start(facts), who) for who, facts in processes.items()):
        if not processes[who].get("role"):  # its parent began before it: it is looked up by now
            parent = _parent(processes[who], processes, under_pid)
            role = processes.get(parent or "", {}).get("role") or found.get(parent or "")
            if role:
                found[who] = str(role)
    return found


def _parent(
    child: Facts,
    processes: Mapping[str, Facts],
    under_pid: Mapping[tuple[str, ...], list[tuple[int, str]]],
) -> str | None:
    """The last that began under the parent's pid before the child: pids are used again."""
    start = _start(child)
    forked_from = str(child.get("forked_from"))
    if forked_from in processes and _start(processes[forked_from]) < start:
        return forked_from
    there = under_pid.get(_place(child, "ppid"), ())
    before = bisect_left(there, (start, ""))
    return there[before - 1][1] if before else None


def _place(facts: Facts, pid: str) -> tuple[str, ...]:
    """A pid means something on its host only; containers have host names of their own."""
    return str(facts.get("node")), str(facts.get("host")), str(facts.get(pid))


def _start(facts: Facts) -> int:
    start = facts.get("start_ns")
    return start if isinstance(start, int) else 0


_WHO = re.compile(r"(.+)-(\d{1,10})-(\d{1,18})-[0-9a-f]+")  # as `Recorder.who` is made
_SLACK_NS = 10**8  # between two pairs of a node's clock with real time


class RunProcesses(ABC):
    """`processes` of the run in `path` by number; `clocks` map nodes' clocks to the run's time."""

    def __init__(self, path: Path, meta: dict[str, Any], names: Iterable[str] = ()) -> None:
        self.path = path
        self.meta = meta
        self.processes: list[TracedProcess] = []
        self.clocks: dict[str, NodeClock] = {}
        self._facts: dict[str, dict[str, Any]] = {}  # what their files say, or their names
        self._numbers: dict[str, int] = {}
        self._names = FollowedNames(path / NAMES, names, self.problem)
        self._strays: set[str] = set()

    @abstractmethod
    def problem(self, what: str, target: str, detail: str) -> None:
        """Is told what cannot be read, or taken as it is."""

    def number_of(self, who: str) -> int:
        """The number of a process; one without a file of its own gets one here."""
        if who not in self._numbers:
            if facts := self._known_of(who):
                self._facts[who] = facts
            lacks = "its role is unknown" if facts else "its clock and role are unknown"
            self.problem("no-process-file", who, lacks)
            self._describe(who)
        return self._numbers[who]

    def is_of_run(self, who: str, target: str) -> bool:
        """Whether what a process stored is of this run; else `target` is told as a problem."""
        if who in self._numbers or self._known_of(who) is not None:
            return True
        if target not in self._strays:
            self._strays.add(target)
            said = "no process of this run recorded it, it lies here by mistake: left out"
            self.problem("another-run", target, said)
        return False

    def translated(self, table: Table, who: str, stored: Columns) -> Columns:
        """Columns of stored rows with aligned times and global name ids; no impossible times."""
        clock = self.clocks.get(self.processes[self.number_of(who)].node)
        columns: Columns = []
        for column, values in zip(table.columns, stored, strict=True):
            if column.is_time and clock is not None:
                columns.append(clock.to_unix(values))
            elif column.is_name:
                columns.append(self._names.translated(who, values))
            else:
                columns.append(values)
        columns, left_out = of_real_times(table, columns)
        if left_out:
            said = f"{left_out:,} rows of no possible time: left out"
            self.problem("impossible-times", f"{table.name} of {who}", said)
        return columns

    def numbered(self, table: Table, who: str, stored: Columns) -> Columns:
        """As `translated`, and the process's number."""
        columns = self.translated(table, who, stored)
        return [*columns, np.full(len(columns[0]), self.number_of(who), np.int32)]

    def possible(self, table: Table, columns: Columns) -> Columns:
        """What of the rows makes sense; what does not is told."""
        columns, odd = of_possible_values(table, columns)
        for (column, became), number in odd.items():
            self.problem("impossible-values", f"{table.name}.{column}", f"{number:,} {became}")
        return columns

    def _align(self) -> list[str]:
        """Aligns the nodes' clocks; the lines that cannot be read."""
        pairs, exchanges, bad_lines = read_clock_files(self.path / CLOCKS)
        for facts in self._facts.values():
            if (pair := pair_of(facts.get("clock"))) is not None:
                pairs.setdefault(str(facts.get("node")), []).append(pair)
        self.clocks = align(str(self.meta.get("node")), pairs, exchanges)
        return bad_lines

    def _describe(self, who: str, child_of: str | None = None) -> None:
        """Puts a process into `processes`, or renews it there."""
        number = self._numbers.setdefault(who, len(self.processes))
        facts = self._facts.get(who, {})
        node = _text(facts.get("node")) or ""
        clock = self.clocks.get(node)
        pid, rank = facts.get("pid"), facts.get("rank")
        process = TracedProcess(
            number=number,
            who=who,
            host=_text(facts.get("host")) or who.split("-", maxsplit=1)[0],
            node=node,
            pid=pid if isinstance(pid, int) else -1,
            role=_text(facts.get("role")),
            rank=rank if isinstance(rank, int) else None,
            adapter=_text(facts.get("adapter")),
            start_ns=clock.moment(int(facts.get("start_ns") or 0)) if clock else -1,
            clock_bound_ns=clock.bound_ns if clock else -1,
            child_of=_text(child_of),
            facts=facts,
        )
        self.processes[number : number + 1] = [process]

    def _known_of(self, who: str) -> dict[str, Any] | None:
        """What the name of a process without a file says where its host has a known process; {} in
        a run without such files; None where it ran on another host or at another time: not here."""
        named = _WHO.fullmatch(who)
        known = [process for process in self.processes if process.who in self._facts]
        seen = [(one[1], process) for process in known if (one := _WHO.fullmatch(process.who))]
        if named is None or not seen:
            return {}
        host, pid, start_ns = named[1], int(named[2]), int(named[3])
        began, ended = self.meta.get("start_real_ns"), self.meta.get("end_real_ns")
        for process in {p.node: p for there, p in seen if there == host}.values():
            clock = self.clocks.get(process.node)
            if clock is None:
                return {}
            at_ns = clock.moment(start_ns)
            is_after = not isinstance(began, int) or at_ns >= began - _SLACK_NS
            if is_after and (not isinstance(ended, int) or at_ns <= ended + _SLACK_NS):
                place = {"node": process.node, "host": process.host}
                return {**place, "pid": pid, "start_ns": start_ns}
        return None

    def _stop(self, who: str) -> dict[str, Any] | None:
        """Why a process stopped recording, by its file: its disk may have no room for a problem."""
        told = self._facts.get(who, {}).get(RECORDING_STOPPED)
        with suppress(ValueError, TypeError):
            return None if told is None else problem_of({**told, "what": RECORDING_STOPPED})
        return None

    def _dated(self, problem: dict[str, Any], who: str) -> dict[str, Any]:
        """A problem of a process, with its time in the run where that is known."""
        at, number = problem.get("monotonic_ns"), self._numbers.get(who)
        clock = None if number is None else self.clocks.get(self.processes[number].node)
        return problem if at is None or clock is None else {**problem, "real_ns": clock.moment(at)}


_MISSING = -2
LARGEST_ID = 1 << 20  # of a name: ids go up by one, to 20,000 names of a process at most
Tell = Callable[[str, str, str], None]  # what cannot be read: its kind, its file, and why


def name_of(line: str) -> tuple[int, str] | None:
    """The id and text in a line of a names file; None: it holds none."""
    with suppress(ValueError, TypeError):
        number, text = parsed(line)
        if is_whole(number) and 0 <= number <= LARGEST_ID:
            return number, str(text).encode("utf-8", "replace").decode()
    return None


class FollowedNames:
    """Names by number, the same for all processes: `texts`, and `numbers` by text, after `known`
    ones. A process writes a name before it uses its id, so unknown ids are in new lines."""

    def __init__(
        self, folder: Path, known: Iterable[str] = (), tell: Tell = lambda what, file, why: None
    ) -> None:
        self.texts = list(known)
        self.numbers = {text: number for number, text in enumerate(self.texts)}
        self._own: dict[str, NDArray[np.int32]] = {}
        self._lines = FollowedLines(folder)
        self._tell = tell

    def translated(self, who: str, ids: NDArray[Any]) -> NDArray[np.int32]:
        """The numbers of a process's own ids; -1 stays -1."""
        found = self._looked_up(who, ids)
        if found.min(initial=-1) == _MISSING:
            self._read(who)
            found = self._looked_up(who, ids)
        if found.min(initial=-1) == _MISSING:  # not remembered: the line may still come
            found[found == _MISSING] = self._number("?")
        return found

    def _looked_up(self, who: str, ids: NDArray[Any]) -> NDArray[np.int32]:
        own = self._own.get(who, np.empty(0, np.int32))
        lookup = np.append(own, np.array([_MISSING, -1], np.int32))
        return lookup[np.where(ids < 0, -1, np.minimum(ids, len(own)))]

    def _read(self, who: str) -> None:
        file, own = f"{NAMES}/{who}.jsonl", self._own.get(who, np.empty(0, np.int32))
        try:
            lines = self._lines.new_of(who)
        except FileNotFoundError:
            return
        except OSError as error:
            self._tell("unreadable-file", file, str(error.strerror))
            return
        named = [found for line in lines if (found := name_of(line)) is not None]
        for _ in range(len(lines) - len(named)):
            self._tell("unreadable-line", file, "skipped")
        more = max([len(own) - 1, *(number for number, _ in named)]) + 1 - len(own)
        own = np.append(own, np.full(more, _MISSING, np.int32))
        for number, text in named:
            own[number] = self._number(text)
        self._own[who] = own

    def _number(self, text: str) -> int:
        number = self.numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number
