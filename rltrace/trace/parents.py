"""Which process of a run started which.

A process that a framework starts beside its Ray actor (the core of an inference engine, its
workers, a pool of graders) has no role of its own: it is known by the role of the one that started
it. Parents that are not traced (a shell, an exec'ed tool) leave their children without one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

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
