"""Puts the clocks of all nodes on one time line, with a bound.

The reference is the monotonic clock of the node on which the run began, tied to real time by the
tightest pair at the start, so that a later step of real time moves nothing. Other nodes are related
to it by the agents' exchanges (Cristian 1989; the four stamps of NTP, RFC 5905 section 8), each
wrong by at most half its round trip; the offset is interpolated between them, which follows drift.
Nodes without a path of exchanges fall back on their own real time; their bound is unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rltrace.trace.metadata_validation import is_whole
from rltrace.trace.untrusted_files import lines_of, own_files, parsed, read_own

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
