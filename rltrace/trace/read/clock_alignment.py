"""Puts the clocks of all nodes on one time line, and says until when each node is known.

The reference is the monotonic clock of the node on which the run began, tied to real time by the
tightest pair at the start, so that a later step of real time moves nothing. Other nodes are related
to it by the agents' exchanges (Cristian 1989; the four stamps of NTP, RFC 5905 section 8), each
wrong by at most half its round trip; the offset is interpolated between them, which follows drift.
Nodes without a path of exchanges fall back on their own real time; their bound is unknown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rltrace.trace.liveness import is_brought
from rltrace.trace.metadata_validation import is_whole
from rltrace.trace.run_dir import NODES
from rltrace.trace.untrusted_files import lines_of, own_files, parsed, read_own, told_in

UNKNOWN_BOUND_NS = -1

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class NodeClock:
    """How a node's monotonic clock maps to Unix time: `unix = t + base_ns + correction(t)`. The
    correction (ns, 0 at first) is interpolated between the exchanges at the node's `at_ns`.
    `bound_ns`: how far it can be off the reference."""

    node: str
    base_ns: int
    at_ns: Int64s
    correction_ns: npt.NDArray[np.float64]
    bound_ns: int

    def to_unix(self, times_ns: Int64s) -> Int64s:
        """Unix ns of monotonic ones; unknown (negative) and empty (0) stay as they are."""
        unix = times_ns + np.int64(self.base_ns)
        if len(self.at_ns) > 1:
            unix += np.rint(np.interp(times_ns, self.at_ns, self.correction_ns)).astype(np.int64)
        np.copyto(unix, times_ns, where=times_ns <= 0)
        return unix

    def moment(self, time_ns: int) -> int:
        return int(self.to_unix(np.array([time_ns], np.int64))[0])


@dataclass(frozen=True)
class Exchange:
    """One measured relation: `peer`'s monotonic clock minus `node`'s, at `node`'s `at_ns`."""

    node: str
    peer: str
    at_ns: int
    offset_ns: int
    rtt_ns: int


Pair = tuple[int, int, int]  # `(monotonic_ns, real_ns, bracket_ns)` of one node


FIRST_PAIRS = 4  # of a node, among which is that which its clock is told by
_PAIR = '{"kind":"pair",'  # how the agent begins a pair, twelve times a minute


def read_clock_files(
    folder: Path, every_pair: bool = False
) -> tuple[dict[str, list[Pair]], list[Exchange], list[str]]:
    """The clock files of all nodes: pairs by node, exchanges, and lines that could not be read. Of
    a file only the pairs that `align` looks at are read, unless `every_pair`."""
    pairs: dict[str, list[Pair]] = {}
    exchanges: list[Exchange] = []
    problems: list[str] = []
    for path in own_files(folder, ".jsonl")[0]:
        node = path.stem.partition("~")[0]  # an agent with a directory of its own adds a name
        try:
            lines = lines_of(read_own(path))
        except OSError as error:
            problems.append(f"{path.name}: {error.strerror}")
            continue
        known = 0
        for number, line in enumerate(lines, 1):
            enough = not every_pair and known >= FIRST_PAIRS
            if enough and line.startswith(_PAIR) and line.endswith("}"):
                continue
            try:
                entry: dict[str, Any] = parsed(line)
                if entry["kind"] == "pair":
                    pair = pair_of(entry)
                    if pair is None:
                        raise ValueError("no times")
                    pairs.setdefault(node, []).append(pair)
                    known += 1
                elif entry["kind"] == "exchange":
                    measured = [entry[key] for key in ("at_ns", "offset_ns", "rtt_ns")]
                    if not all(map(is_whole, measured)):
                        raise ValueError("no times")
                    exchanges.append(Exchange(node, str(entry["peer"]), *measured))
            except (ValueError, KeyError, TypeError):
                problems.append(f"{path.name}:{number}")
    return pairs, exchanges, problems


def pair_of(said: object) -> Pair | None:
    """The clock pair in what a file says; None: it has none."""
    if not isinstance(said, dict):
        return None
    pair: Any = (said.get("monotonic_ns"), said.get("real_ns"), said.get("bracket_ns", 0))
    return pair if all(map(is_whole, pair)) else None


def align(
    reference: str, pairs: dict[str, list[Pair]], exchanges: Iterable[Exchange]
) -> dict[str, NodeClock]:
    """A clock for every node with a pair. The first node stands in for a reference without one."""
    if reference not in pairs:
        reference = next(iter(sorted(pairs)), reference)
    if reference not in pairs:
        return {}
    by_peer: dict[str, dict[str, list[Exchange]]] = {}
    for e in exchanges:
        by_peer.setdefault(e.peer, {}).setdefault(e.node, []).append(e)
        # Seen from the other side, the same measurement at the other clock's time.
        turned = Exchange(e.peer, e.node, e.at_ns + e.offset_ns, -e.offset_ns, e.rtt_ns)
        by_peer.setdefault(e.node, {}).setdefault(e.peer, []).append(turned)

    clocks = {reference: _by_itself(reference, pairs[reference], 0)}
    waiting = deque([reference])
    while waiting:  # breadth first: the fewest hops, so the smallest sum of bounds
        known = clocks[waiting.popleft()]
        for node, measured in by_peer.get(known.node, {}).items():
            if node not in clocks:
                clocks[node] = _through(known, node, measured)
                waiting.append(node)
    alone = {n: _by_itself(n, own, UNKNOWN_BOUND_NS) for n, own in pairs.items() if n not in clocks}
    return {**clocks, **alone}


def _through(known: NodeClock, node: str, measured: list[Exchange]) -> NodeClock:
    measured = sorted(measured, key=lambda e: e.at_ns)
    at_ns = np.array([e.at_ns for e in measured], np.int64)
    shift_ns = known.to_unix(np.array([e.at_ns + e.offset_ns for e in measured], np.int64)) - at_ns
    base_ns = int(shift_ns[0])
    bound_ns = known.bound_ns + max((e.rtt_ns + 1) // 2 for e in measured)
    return NodeClock(node, base_ns, at_ns, (shift_ns - base_ns).astype(float), bound_ns)


def _by_itself(node: str, pairs: list[Pair], bound_ns: int) -> NodeClock:
    """By the tightest of the first few pairs: later ones may have seen real time stepped."""
    monotonic_ns, real_ns, _ = min(sorted(pairs)[:FIRST_PAIRS], key=lambda pair: pair[2])
    no_times = np.empty(0, np.int64)
    return NodeClock(node, real_ns - monotonic_ns, no_times, no_times.astype(float), bound_ns)


# What a node shipped is known until its files were looked at last: what did not end by then may
# have ended.

SHIPPED = "shipped"  # in a node's file at the store: whether all of the node is there
LOOKED, ALL_LOOKED, AGAIN = "looked_ns", "all_looked_ns", "again_s"
"""There, too, while not all is: when the last look began that all came of, since when each file of
rows was looked at (ns of the node's monotonic clock), and seconds to the next look."""

_GONE_S, _GONE_TIMES = 120.0, 4.0
"""A node that was silent for so long, and for so many times as long as it said, is gone."""


@dataclass(frozen=True)
class NodeReach:
    """A node of which more is to come. What it recorded is here until `until_ns`, of long silent
    processes until `all_ns` (Unix ns; 0: it has not said). `again_s`: between its looks."""

    node: str
    host: str
    until_ns: int
    all_ns: int
    again_s: float


@dataclass(frozen=True)
class Reach:
    """The nodes of which not all is here; containers of a kernel are one, each with own files."""

    nodes: tuple[NodeReach, ...]

    @property
    def until_ns(self) -> int:
        """Until when something is known of any of them (Unix ns); 0: none has said."""
        return max((node.until_ns for node in self.nodes), default=0)

    def known_ns(self, node: str, sign_ns: int, until_ns: int) -> int:
        """Until when (Unix ns) a process is known, by its last sign and the recording's end."""
        all_ns = min((told.all_ns for told in self.nodes if told.node == node), default=until_ns)
        return min(until_ns, max(sign_ns, all_ns))

    def gone(self, now_ns: int) -> tuple[NodeReach, ...]:
        return tuple(
            node
            for node in self.nodes
            if node.until_ns > 0
            and (now_ns - node.until_ns) / 1e9 > max(_GONE_S, _GONE_TIMES * node.again_s)
        )


EVERYTHING = Reach(())  # of a run that lies where it was recorded, or is here whole


def read_reach(run: Path, clocks: Mapping[str, NodeClock]) -> Reach:
    """The reach of a run; `clocks` are its nodes'. What cannot be read tells of nothing."""
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
    node, host = str(told.get("node")), str(told.get("host"))
    return NodeReach(node, host, unix(LOOKED), unix(ALL_LOOKED), again_s)


def clock_time(moment_ns: int) -> str:
    """A moment as a clock on the wall here shows it, with its date where that is not today's."""
    at = time.localtime(moment_ns / 1e9)
    is_today = at[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", at)
