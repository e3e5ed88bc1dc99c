"""Clocks of several nodes on one time line, and how far they may be off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rltrace.testing.inside.trace import dumps
from rltrace.trace.read.clock_alignment import (
    UNKNOWN_BOUND_NS,
    Exchange,
    NodeClock,
    align,
    read_clock_files,
)

DAY_NS = 86_400 * 10**9
REAL_NS = 1_760_000_000 * 10**9


def unix(clock: NodeClock, monotonic_ns: int) -> int:
    """What a moment of a node's clock is in Unix time."""
    return int(clock.to_unix(np.array([monotonic_ns], np.int64))[0])


@pytest.mark.parametrize("told_by", ["a", "b"])
def test_nodes_days_apart_meet_within_the_bound(told_by: str) -> None:
    """Node b's monotonic clock is a day ahead and its real-time clock an hour wrong."""
    pairs = {
        "a": [(1000, REAL_NS + 1000, 50)],
        "b": [(DAY_NS + 5000, REAL_NS + 5000 + 3600 * 10**9, 50)],
    }
    rtt = 40_000
    wrong_by = 12_000  # asymmetric path: within rtt / 2
    exchange = Exchange("b", "a", DAY_NS + 9000, -DAY_NS + wrong_by, rtt)
    if told_by == "a":
        exchange = Exchange("a", "b", 9000, DAY_NS - wrong_by, rtt)
    clocks = align("a", pairs, [exchange])
    assert unix(clocks["b"], DAY_NS + 70_000) - unix(clocks["a"], 70_000) == wrong_by
    assert clocks["b"].bound_ns == rtt // 2 >= wrong_by
    assert clocks["a"].bound_ns == 0
    assert unix(clocks["a"], 1000) == REAL_NS + 1000


def test_drift_between_exchanges_is_followed() -> None:
    """Node b runs 50 ppm fast: 180 ms an hour."""
    pairs = {"a": [(1, REAL_NS, 0)], "b": [(1, REAL_NS, 0)]}
    hour_ns = 3600 * 10**9

    def of_b(t: int) -> int:
        return t + t * 50 // 10**6

    exchanges = [Exchange("b", "a", of_b(t), t - of_b(t), 20) for t in (1, hour_ns, 2 * hour_ns)]
    clock = align("a", pairs, exchanges)["b"]
    for t in (hour_ns // 2, hour_ns, hour_ns * 3 // 2):
        assert abs(unix(clock, of_b(t)) - (REAL_NS - 1 + t)) <= 2


def test_bounds_add_up_along_a_path() -> None:
    pairs = {n: [(10, REAL_NS, 0)] for n in "abc"}
    exchanges = [Exchange("b", "a", 5, 0, 100), Exchange("c", "b", 5, 0, 60)]
    assert align("a", pairs, exchanges)["c"].bound_ns == 80


def test_without_an_exchange_the_bound_is_unknown() -> None:
    """And times that are unknown stay so."""
    pairs = {"a": [(10, REAL_NS, 0)], "b": [(20, REAL_NS + 7, 0)]}
    clocks = align("a", pairs, [])
    assert clocks["b"].bound_ns == UNKNOWN_BOUND_NS
    assert unix(clocks["b"], 25) == REAL_NS + 12
    assert clocks["a"].to_unix(np.array([-1, 0, 20])).tolist() == [-1, 0, REAL_NS + 10]


def test_a_later_step_of_real_time_moves_nothing() -> None:
    steady = [(i * 10**9 + 1, REAL_NS + i * 10**9, 100) for i in range(4)]
    stepped = [(i * 10**9 + 1, REAL_NS + i * 10**9 + 60 * 10**9, 1) for i in range(4, 9)]
    clock = align("a", {"a": steady + stepped}, [])["a"]
    assert unix(clock, 8 * 10**9 + 1) == REAL_NS + 8 * 10**9


def test_a_clock_is_told_by_its_first_pairs_however_many_follow(tmp_path: Path) -> None:
    pairs = [(1_000 * n, 5_000 * n, 100 - n) for n in range(1, 10)]
    lines: list[dict[str, object]] = [
        {"kind": "pair", "monotonic_ns": a, "real_ns": b, "bracket_ns": c} for a, b, c in pairs
    ]
    exchange = {"kind": "exchange", "peer": "b", "at_ns": 7, "offset_ns": 8, "rtt_ns": 9}
    lines += [exchange, {"kind": "exchange", "peer": "x"}]  # of which the latter is damaged
    text = "".join(dumps(line) + "\n" for line in lines)
    (tmp_path / "a.jsonl").write_text(text + '{"kind":"pair","monotonic_ns":1')
    first, exchanges, problems = read_clock_files(tmp_path)
    every, again, _ = read_clock_files(tmp_path, every_pair=True)
    assert every == {"a": pairs}
    assert len(exchanges) == len(again) == 1
    assert problems == ["a.jsonl:11", "a.jsonl:12"]
    assert len(first["a"]) == 4
    assert align("a", first, [])["a"].base_ns == align("a", every, [])["a"].base_ns


def test_many_nodes_take_no_longer_than_their_number() -> None:
    """A file of 4 MB names as many: work that grows with the square would take minutes."""
    exchanges = [Exchange("a", f"n{i}", 100 + i, i, 1) for i in range(60_000)]
    clocks = align("a", {"a": [(100, 1100, 1)]}, exchanges)
    assert [clocks[f"n{i}"].base_ns for i in (0, 7, 59_999)] == [1000, 993, -58_999]
