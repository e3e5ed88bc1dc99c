"""What numpy lays down is what the official protobufs read."""

from __future__ import annotations

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    DebugAnnotation,
    Trace,
    TracePacket,
    TrackEvent,
)

from rltrace.report.perfetto.wire import fixed64, integer, merge, nested, record

LIMITS = [0, 1, 127, 128, 16383, 16384, 2**32, 2**63 - 1, -1, -(2**63)]


def test_columns_of_any_integers_read_back() -> None:
    values = np.array(LIMITS, np.int64)
    rows = record(integer(DebugAnnotation, "int_value", values), len(values))
    assert [DebugAnnotation.FromString(r.tobytes()).int_value for r in rows] == LIMITS


def test_small_integers_take_few_bytes() -> None:
    assert record(integer(TrackEvent, "name_iid", np.array([1, 100])), 2).shape == (2, 2)


def test_doubles_read_back_bit_for_bit() -> None:
    values = np.array([0.1, -1e300, np.inf])
    rows = record(fixed64(TrackEvent, "double_counter_value", values), 3)
    read = [TrackEvent.FromString(r.tobytes()).double_counter_value for r in rows]
    assert read == values.tolist()


def test_records_of_different_widths_merge_in_order() -> None:
    packets = {
        places: nested(Trace, "packet", integer(TracePacket, "timestamp", np.array(values)))
        for places, values in (((0, 3), [5, 6]), ((1, 2), [2**40, 2**41]))
    }
    merged = merge([(np.array(p), record(parts, 2)) for p, parts in packets.items()], 4)
    trace = Trace.FromString(merged.tobytes())
    assert [p.timestamp for p in trace.packet] == [5, 2**40, 2**41, 6]
