"""Until when a run is known that was brought from a URL before all of it was there.

A node's agent ships what changed since it looked last, and says when that was; of what happened
since then nothing is known here. So a process that was silent is known to have been only until its
files were looked at last, and what did not end may have ended.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.trace.alignment import NodeClock
from rltrace.trace.liveness import is_brought
from rltrace.trace.own_files import own_files
from rltrace.trace.run_dir import NODES
from rltrace.trace.texts import told_in

SHIPPED = "shipped"
"""In the file of a node at the store: whether all of the node is there."""

LOOKED, ALL_LOOKED, AGAIN = "looked_ns", "all_looked_ns", "again_s"
"""There, too, while it is not: when the last look began that all came of, and since when each file
of rows has been looked at (ns of the node's monotonic clock), and in how many seconds the next look
is due."""

_GONE_S, _GONE_TIMES = 120.0, 4.0
"""A node from which nothing came for so long, and for so many times as long as it said, is gone."""


@dataclass(frozen=True)
class NodeReach:
    """A node, and its host, of which more is to come. What it recorded is here until `until_ns`, of
    processes that were silent for long until `all_ns` (Unix ns; 0: it has not said); `again_s` is
    how long after its last look it was to look again."""

    node: str
    host: str
    until_ns: int
    all_ns: int
    again_s: float

    def is_gone(self, now_ns: int) -> bool:
        """Whether nothing has come for too long."""
        silent_s = (now_ns - self.until_ns) / 1e9
        return self.until_ns > 0 and silent_s > max(_GONE_S, _GONE_TIMES * self.again_s)


@dataclass(frozen=True)
class Reach:
    """The nodes of which not all is here; containers of one kernel are one node, each with files
    of its own."""

    nodes: tuple[NodeReach, ...]

    @property
    def until_ns(self) -> int:
        """Until when something is known of any of them (Unix ns); 0 where none has said."""
        return max((node.until_ns for node in self.nodes), default=0)

    def known_ns(self, node: str, sign_ns: int, until_ns: int) -> int:
        """Until when it is known what a process did of which the last sign is from `sign_ns`, in a
        recording that lasted until `until_ns` (Unix ns)."""
        all_ns = min((told.all_ns for told in self.nodes if told.node == node), default=until_ns)
        return min(until_ns, max(sign_ns, all_ns))

    def gone(self, now_ns: int) -> tuple[NodeReach, ...]:
        """Those from which nothing has come for too long."""
        return tuple(node for node in self.nodes if node.is_gone(now_ns))


EVERYTHING = Reach(())
"""Of a run that lies where it was recorded, or all of which is here."""


def read_reach(run: Path, clocks: Mapping[str, NodeClock]) -> Reach:
    """The reach of the run in a directory, of whose nodes these are the clocks. What cannot be read
    tells of nothing."""
    if not is_brought(run):
        return EVERYTHING
    found = []
    for path in own_files(run / NODES, ".json")[0]:
        told = told_in(path)
        if told.get(SHIPPED) is False:
            found.append(_node_reach(told, clocks.get(str(told.get("node")))))
    return Reach(tuple(found))


def _node_reach(told: Mapping[str, Any], clock: NodeClock | None) -> NodeReach:
    def unix(key: str) -> int:
        value = told.get(key)
        if clock is None or type(value) is not int or not 0 < value < 1 << 62:
            return 0
        return clock.moment(value)

    again = told.get(AGAIN)
    again_s = float(again) if isinstance(again, (int, float)) and 0 <= again < 1e9 else 0.0
    return NodeReach(
        str(told.get("node")), str(told.get("host")), unix(LOOKED), unix(ALL_LOOKED), again_s
    )


def clock_time(moment_ns: int) -> str:
    """A moment as a clock on the wall here shows it; with its date where that is not today's."""
    at = time.localtime(moment_ns / 1e9)
    is_today = at[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", at)
