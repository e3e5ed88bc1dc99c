"""miles' dashboard: a log of phases. Its figures are named as slime's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from rltrace.adapters.log_table import LoggedProcess, PlacedSpan, SpanNames, log_tables, ns, whole
from rltrace.trace.vocabulary import Stage

_ROLES = {"train": "learner", "rollout_manager": "rollouter"}


def phases(lines: list[dict[str, Any]]) -> Iterator[PlacedSpan]:
    """A span of each phase, and a step from one rollout to the next: no phase says its step."""
    names = SpanNames(log_tables()["miles"]["spans"])
    generations = []
    for line in lines:
        start_ns, end_ns = ns(line.get("t0")), ns(line.get("t1"))
        name = str(line.get("name", ""))
        stage = names.stage_of(name)
        if start_ns is None or end_ns is None or stage is None or end_ns < start_ns:
            continue
        rank, role = line.get("rank"), str(line.get("role", ""))
        host = str(line.get("node", ""))
        process = LoggedProcess(f"{role} {rank}", _ROLES.get(role, role), host, whole(rank))
        span = PlacedSpan(process, 0, name, stage, start_ns, end_ns)
        if stage == Stage.ROLLOUT:
            generations.append(span)
        yield span
    generations.sort(key=lambda span: span.start_ns)
    for first, then in pairwise(generations):
        yield PlacedSpan(first.process, 1, "step", Stage.STEP, first.start_ns, then.start_ns)
