"""What numpy lays down is what the official protobufs read, and slices of one track always nest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    DebugAnnotation,
    Trace,
    TracePacket,
    TrackEvent,
)

from rltrace.report.perfetto import scene, wire
from rltrace.report.perfetto.scene import OPEN, Ints, Note, Points, Slices, nest, pack
from rltrace.report.perfetto.wire import Bytes, Part, Varints, integer, merge, nested
from rltrace.report.perfetto.wire import WireRecord as Record
from rltrace.testing import run_from_arrays

LIMITS = [*(n for bits in range(0, 63, 7) for n in (2**bits - 1, 2**bits)), 2**63 - 1]


def laid(parts: list[Part], rows: int) -> Bytes:
    every = np.arange(rows)
    return Record(parts).lay(every, every)


@pytest.mark.parametrize(
    "values",
    [*(LIMITS[:most] for most in range(1, len(LIMITS) + 1)), [-1, 5, -(2**63), 2**56, 2**63 - 1]],
)
def test_columns_of_any_integers_read_back(values: list[int]) -> None:
    rows = laid(integer(DebugAnnotation, "int_value", Varints(np.array(values))), len(values))
    assert [DebugAnnotation.FromString(r.tobytes()).int_value for r in rows] == values


def test_small_integers_take_few_bytes_whatever_stands_where_nothing_is_known() -> None:
    values, known = np.array([1, -1, 100]), np.array([True, False, True])
    record = Record(integer(TrackEvent, "name_iid", Varints(values, known)))
    rows = record.lay(np.array([0, 2]), np.array([0, 1]))
    assert rows.shape == (2, 2)
    assert [TrackEvent.FromString(r.tobytes()).name_iid for r in rows] == [1, 100]


def test_doubles_read_back_bit_for_bit() -> None:
    values = np.array([0.1, -1e300, np.inf])
    rows = laid(wire.fixed64(TrackEvent, "double_counter_value", wire.Fixed64(values)), 3)
    read = [TrackEvent.FromString(r.tobytes()).double_counter_value for r in rows]
    assert read == values.tolist()


def test_a_repeated_field_takes_its_values_from_where_each_row_says() -> None:
    ids, first = np.arange(100, 110), np.array([7, 0, 3])
    rows = laid(wire.fixed64s(TrackEvent, "flow_ids", ids, first, 3), 3)
    read = [list(TrackEvent.FromString(r.tobytes()).flow_ids) for r in rows]
    assert read == [[107, 108, 109], [100, 101, 102], [103, 104, 105]]


def test_messages_of_different_widths_merge_in_order() -> None:
    time = Varints(np.array([5, 6, 7, 8]))

    def packets(sizes: list[int], rows: list[int], places: list[int]) -> tuple[np.ndarray, Bytes]:
        size = integer(TracePacket, "trusted_uid", Varints(np.array(sizes)))
        parts = nested(Trace, "packet", [*size, *integer(TracePacket, "timestamp", time)])
        at = np.array(places)
        return at, Record(parts, time).lay(np.array(rows), at)

    merged = merge([packets([1, 2], [1, 0], [0, 3]), packets([2**30, 2**29], [0, 1], [1, 2])], 4)
    trace = Trace.FromString(merged.tobytes())
    assert [p.timestamp for p in trace.packet] == [5, 6, 7, 8]
    assert [p.trusted_uid for p in trace.packet] == [2, 2**30, 2**29, 1]


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def crosses(start: Ints, end: Ints) -> bool:
    """Whether any two slices overlap without one holding the other."""
    a, b, c, d = start[:, None], end[:, None], start[None, :], end[None, :]
    return bool(((a < c) & (c < b) & (b < d)).any())


@pytest.mark.parametrize("seed", range(40))
def test_any_spans_end_up_nested_and_few_are_moved(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 60))
    lane = random.integers(0, 4, count)
    start = random.integers(0, 50, count)
    end = start + random.integers(0, 12, count)
    end[random.random(count) < 0.05] = OPEN
    extra = nest(lane, start, end)
    for one in set(zip(lane.tolist(), extra.tolist(), strict=True)):
        members = (lane == one[0]) & (extra == one[1])
        assert not crosses(start[members], end[members])
    for one in range(4):
        members = lane == one
        if not crosses(start[members], end[members]):
            assert not extra[members].any(), "a lane that nests stays as it is"


def test_only_what_crosses_is_moved() -> None:
    start, end = ints(0, 10, 20, 90, 120), ints(100, 30, 25, 110, 130)
    assert nest(ints(7, 7, 7, 7, 7), start, end).tolist() == [0, 0, 0, 1, 0]
    # A span left open inside an ended one does not take its end.
    assert nest(ints(1, 1, 1), ints(0, 10, 50), ints(40, OPEN, 60)).tolist() == [0, 1, 0]
    # What touches or is empty stays.
    start, end = ints(0, 10, 10, 10, 5), ints(10, 20, 10, 10, 5)
    assert not nest(ints(1, 1, 1, 1, 1), start, end).any()
    assert len(nest(ints(), ints(), ints())) == len(pack(ints(), ints())) == 0


@pytest.mark.parametrize("seed", range(20))
def test_packing_uses_as_many_rows_as_overlap_at_the_busiest_moment(seed: int) -> None:
    random = np.random.default_rng(seed)
    start = random.integers(0, 1000, 200)
    end = start + random.integers(1, 100, 200)
    rows = pack(start, end)
    for row in range(int(rows.max()) + 1):
        order = np.argsort(start[rows == row])
        assert (end[rows == row][order][:-1] <= start[rows == row][order][1:]).all()
    moments = np.arange(1100)[:, None]
    busiest = ((start <= moments) & (moments < end)).sum(axis=1).max()
    assert rows.max() + 1 == busiest


@pytest.mark.parametrize("seed", range(10))
def test_events_are_the_same_however_few_are_encoded_at_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(seed)
    start = random.integers(0, 200, 3000) + (1 << 60)
    end = start + random.integers(0, 40, 3000)
    end[::50] = OPEN
    some = np.ones(3000, np.int64)
    note = Note(4, "integer", random.integers(-1, 300, 3000), random.random(3000) < 0.5)
    slices = Slices(random.integers(1, 9, 3000), start, end, some * 5, some, (note,))
    moments = Slices(some * 9, start, start, some * 6, some, moments=True)
    points = Points(some * 10, start, random.random(3000))

    def events() -> list[tuple[int, bytes]]:
        now, found = int(start.min()), []
        for chunk in wire.in_time_order([slices, moments], points):
            for packet in Trace.FromString(chunk.tobytes()).packet:
                now += packet.timestamp
                found.append((now, packet.track_event.SerializeToString()))
        return found

    whole = events()
    monkeypatch.setattr(wire, "_AT_ONCE", 512)
    assert len(list(wire.in_time_order([slices, moments], points))) > 10
    assert events() == whole
    assert len(whole) == 2 * 3000 - 60 + 3000 + 3000
    assert [time for time, _ in whole] == sorted(time for time, _ in whole)


def test_narrow_columns_hold_what_the_table_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(1)
    begins = np.sort(random.random(400))
    spans = {"stage": ["rollout"] * 400, "start_s": begins, "end_s": begins + 1.0}
    spans |= {"tokens": random.integers(0, 1 << 40, 400), "step": random.integers(0, 300, 400)}
    run = run_from_arrays(tmp_path / "run", {"spans": spans})
    columns = "process, start_ns, end_ns, step, tokens, bytes"
    whole = run.ask_columns(f"SELECT {columns} FROM raw_spans")
    monkeypatch.setattr(scene, "_PART_ROWS", 50)
    found = scene.narrow(run, columns, "raw_spans WHERE stage >= 0")
    assert {name: values.tolist() for name, values in found.items()} == {
        name: values.tolist() for name, values in whole.items()
    }
    sizes = {name: values.dtype.itemsize for name, values in found.items()}
    assert sizes == {"process": 1, "start_ns": 8, "end_ns": 8, "step": 2, "tokens": 8, "bytes": 1}
    assert len(scene.narrow(run, columns, "raw_spans WHERE stage < 0")["step"]) == 0
