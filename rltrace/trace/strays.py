"""Segments of processes that have no file of their own in a run: it is lost, or they were copied
there from another run. A process's name tells its host, and when it began by the clock of that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rltrace.trace.alignment import NodeClock
from rltrace.trace.processes import Process

OTHER_RUN = "another-run"
OTHER_RUNS = "no process of this run recorded it, it lies here by mistake: left out"

_WHO = re.compile(r"(.+)-(\d{1,10})-(\d{1,18})-[0-9a-f]+")  # as `Recorder.who` is made
_SLACK_NS = 10**8  # between two pairs of a node's clock with real time


def known_of(
    who: str, meta: Mapping[str, Any], known: Sequence[Process], clocks: Mapping[str, NodeClock]
) -> dict[str, Any] | None:
    """What the name of a process says that has no file, as its file would: its node and its start,
    where a process that is `known` was on its host. Of a run of which no process has a file that is
    nothing. None where it is of another run: it ran on another host, or at another time."""
    named = _WHO.fullmatch(who)
    seen = [(one[1], process) for process in known if (one := _WHO.fullmatch(process.who))]
    if named is None or not seen:
        return {}
    host, pid, start_ns = named[1], int(named[2]), int(named[3])
    began, ended = meta.get("start_real_ns"), meta.get("end_real_ns")
    for process in {p.node: p for there, p in seen if there == host}.values():
        clock = clocks.get(process.node)
        if clock is None:
            return {}
        at_ns = int(clock.to_unix(np.array([start_ns], np.int64))[0])
        is_after = not isinstance(began, int) or at_ns >= began - _SLACK_NS
        is_before = not isinstance(ended, int) or at_ns <= ended + _SLACK_NS
        if is_after and is_before:
            return {"node": process.node, "host": process.host, "pid": pid, "start_ns": start_ns}
    return None
