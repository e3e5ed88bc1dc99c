"""The processes of a run, as their own files describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
    start = np.array([int(facts.get("start_ns") or 0)], np.int64)
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
        start_ns=int(clock.to_unix(start)[0]) if clock else -1,
        clock_bound_ns=clock.bound_ns if clock else -1,
        child_of=_text(child_of),
        facts=facts,
    )


def _text(value: object) -> str | None:
    """What a job says of itself, as text that every table takes."""
    return None if value is None else whole_text(str(value))
