"""The processes of a run, as their own files describe them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rltrace.trace.alignment import NodeClock
from rltrace.trace.stated import whole_text


@dataclass(frozen=True)
class Process:
    """One traced process. `number` is its `process` in every table; `start_ns` is Unix time;
    `clock_bound_ns` says how well its clock is known (0: the reference's own, -1: not at all);
    `child_of` is the role of the process that started one that has no role itself."""

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


def described(
    number: int,
    who: str,
    facts: dict[str, Any],
    clocks: Mapping[str, NodeClock],
    child_of: str | None,
) -> Process:
    """The process of `facts`, what its file holds; `clocks` are those of the nodes."""
    node = _text(facts.get("node")) or ""
    clock = clocks.get(node)
    pid, rank = facts.get("pid"), facts.get("rank")
    return Process(
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


def _text(value: object) -> str | None:
    """What a job says of itself, as text that every table takes."""
    return None if value is None else whole_text(str(value))


# --- which process of a run started which
# A process that a framework starts beside its Ray actor (the core of an inference engine, its
# workers, a pool of graders) has no role of its own: it is known by the role of the one that
# started it. Parents that are not traced (a shell, an exec'ed tool) leave their children without
# one.

Facts = Mapping[str, Any]
"""What a process's own file says."""


def roles_of_parents(processes: Mapping[str, Facts]) -> dict[str, str]:
    """For each process (by its `who`) without a role: that of its nearest ancestor with one."""
    under_pid: dict[tuple[str, ...], list[tuple[int, str]]] = defaultdict(list)
    for who, facts in processes.items():
        under_pid[_place(facts, "pid")].append((_start(facts), who))
    found = {}
    for who in processes:
        ancestor: str | None = who
        while ancestor is not None and not processes[ancestor].get("role"):
            ancestor = _parent(processes[ancestor], processes, under_pid)
        if ancestor not in (None, who):
            found[who] = str(processes[ancestor]["role"])
    return found


def _parent(
    child: Facts,
    processes: Mapping[str, Facts],
    under_pid: Mapping[tuple[str, ...], list[tuple[int, str]]],
) -> str | None:
    """A pid is used again and again, and by programs that replace each other (`exec`): the last
    that began under it before its child did."""
    start = _start(child)
    forked_from = str(child.get("forked_from"))
    if forked_from in processes and _start(processes[forked_from]) < start:
        return forked_from
    before = [one for one in under_pid.get(_place(child, "ppid"), ()) if one[0] < start]
    return max(before)[1] if before else None


def _place(facts: Facts, pid: str) -> tuple[str, ...]:
    """A pid means something on its host only; containers have host names of their own."""
    return str(facts.get("node")), str(facts.get("host")), str(facts.get(pid))


def _start(facts: Facts) -> int:
    start = facts.get("start_ns")
    return start if isinstance(start, int) else 0
