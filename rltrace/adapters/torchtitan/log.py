"""torchtitan's structured log: JSON lines that end a span, by rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rltrace.adapters.log_table import (
    LoggedProcess,
    PlacedSpan,
    SpanNames,
    lane_of,
    log_tables,
    ns,
    whole,
)
from rltrace.trace.vocabulary import Stage

_WAITED_FOR = frozenset({"generate", "forward_backward", "optim_step", "rollout_group"})
"""What the controller only waits for: its actors do it."""


def spans(lines: list[dict[str, Any]]) -> Iterator[PlacedSpan]:
    """Those with a name that is mapped."""
    names = SpanNames(log_tables()["torchtitan"]["spans"])
    for line in lines:
        name = line.get("log_type_name")
        took_ns, end_ns = ns(line.get("value"), 1e6), ns(line.get("time_us"), 1e3)
        if not isinstance(name, str) or not name.endswith("_end"):
            continue
        name = name.removesuffix("_end")
        stage = names.stage_of(name)
        if took_ns is None or end_ns is None or stage is None:
            continue
        source, rank = str(line.get("source", "")), line.get("rank")
        if source == "controller" and name in _WAITED_FOR:
            stage = Stage.WAIT
        host, step = str(line.get("host_name", "")), whole(line.get("step"))
        process = LoggedProcess(f"{source} {rank}", source, host, whole(rank))
        lane, number = lane_of(line.get("task_name", line.get("tid"))), -1 if step is None else step
        yield PlacedSpan(process, lane, name, stage, end_ns - took_ns, end_ns, number)
