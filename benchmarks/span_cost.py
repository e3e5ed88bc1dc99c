"""What one span costs: rltrace's public API beside OpenTelemetry's SDK and VizTracer's `log_event`.

    python -m benchmarks.span_cost [--rounds 31] [--json]

CPU time of the recording thread for one span, the loop around it included, interleaved, garbage
collection on. rltrace runs for hundreds of thousands of spans, so new batches and the page faults
of fresh file space are in it. The spans of OpenTelemetry carry the same facts as attributes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

import rltrace
from benchmarks.make_trace import make
from benchmarks.measuring import Check, Result, cpu_ns_each, spread, take_turns
from benchmarks.synthetic.workload import Workload
from rltrace.testing.inside.hooks import recorder
from rltrace.testing.inside.trace import LARGEST_BATCH_ROWS, SPANS, create_run
from rltrace.testing.inside.trace import compaction_compact as compact

SPANS_A_ROUND = 20_000
OTHERS_A_ROUND = 2_000  # a span of OpenTelemetry takes twenty times as long

LOOP = "empty loop"
FULL = "rltrace: with span(...), every column, two deep"
OPENTELEMETRY = "OpenTelemetry SDK: the same facts as attributes, two deep"
VIZTRACER = "VizTracer: with log_event(name), two deep"
IDLE = "rltrace, no run: with span(...)"


def loop(count: int) -> None:
    for _ in range(count):
        pass


def every_column(count: int) -> None:
    span = rltrace.span
    for i in range(count // 2):
        with (
            span("rollout", "generate", "load", step=i, version=4, tokens=512, bytes=4096, items=8),
            span("env", "tool", "load", step=i, version=4, tokens=512, bytes=4096, items=8),
        ):
            pass


def smallest(count: int) -> None:
    span = rltrace.span
    for _ in range(count):
        with span("rollout"):
            pass


def decorated(count: int) -> None:
    @rltrace.span("rollout")
    def call() -> None:
        pass

    for _ in range(count):
        call()


def asynchronous(count: int) -> None:
    async def spans() -> None:
        span = rltrace.span
        for _ in range(count):
            async with span("rollout"):
                pass

    asyncio.run(spans())


@contextmanager
def recording(directory: Path) -> Iterator[None]:
    """A run in this process: every span of rltrace meanwhile is stored there."""
    create_run(str(directory), sys.argv, {}, rltrace.__version__)
    recorder.start(str(directory))
    yield
    recorder.stop()


@contextmanager
def opentelemetry() -> Iterator[tuple[Callable[[int], None], Callable[[], None]]]:
    """A run of OpenTelemetry spans, and what empties its exporter. The queue is large enough that
    nothing is dropped: dropping would be cheaper."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
        InMemorySpanExporter,
    )

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    exporter = InMemorySpanExporter()
    processor = BatchSpanProcessor(exporter, max_queue_size=1 << 20, max_export_batch_size=4096)
    provider = TracerProvider()
    provider.add_span_processor(processor)
    start = provider.get_tracer("benchmark").start_as_current_span

    def run(count: int) -> None:
        facts = {"phase": "load", "version": 4, "tokens": 512, "bytes": 4096, "items": 8}
        for i in range(count // 2):
            facts["step"] = i
            with start("generate", attributes=facts), start("tool", attributes=facts):
                pass

    def clear() -> None:
        processor.force_flush()
        exporter.clear()

    yield run, clear
    provider.shutdown()


@contextmanager
def viztracer(rounds: int) -> Iterator[Callable[[int], None]]:
    """A run of VizTracer events. As in a job, it keeps them until it is asked to save them."""
    from viztracer import VizTracer

    tracer = VizTracer(tracer_entries=rounds * SPANS_A_ROUND, log_sparse=True, verbose=0)
    # Making a tracer sets a profiler on every call of this thread; events are recorded without it.
    tracer.start()
    tracer.stop()
    event = tracer.log_event

    def run(count: int) -> None:
        for _ in range(count // 2):
            with event("generate"), event("tool"):
                pass

    yield run
    tracer.clear()


def after(clear: Callable[[], None], measure: Callable[[], float]) -> Callable[[], float]:
    """A measure that begins with an emptied buffer, which is not timed."""

    def cleared() -> float:
        clear()
        return measure()

    return cleared


def objects_a_span(count: int = 100_000) -> float:
    """Python objects (allocated blocks) that a recorded span leaves behind."""
    every_column(1000)
    gc.collect()
    before = sys.getallocatedblocks()
    every_column(count)
    gc.collect()
    return (sys.getallocatedblocks() - before) / count


def bytes_a_span(directory: Path) -> float:
    """File bytes a span while batches of the largest size fill up."""

    def size() -> int:
        return sum(file.stat().st_size for file in (directory / "spans").iterdir())

    before = size()
    batches = 16
    smallest(batches * LARGEST_BATCH_ROWS)
    return (size() - before) / (batches * LARGEST_BATCH_ROWS)


def compacted_bytes_a_span(directory: Path) -> float:
    """Bytes of the Parquet file a span, for a synthetic run of a million spans."""
    make(directory, Workload(spans=1_000_000))
    done = compact(rltrace.open_run(directory))
    return done.parquet_bytes["spans"] / done.rows["spans"]


@click.command()
@click.option("--rounds", default=31, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(rounds: int, as_json: bool) -> None:
    """Cost of a span against OpenTelemetry and VizTracer; exits 1 when a limit is missed."""
    result = Result("Cost of a span", "ns of CPU")
    turns = {LOOP: cpu_ns_each(loop, SPANS_A_ROUND)}
    idle = {
        IDLE: cpu_ns_each(smallest, SPANS_A_ROUND),
        "rltrace, no run: decorated function": cpu_ns_each(decorated, SPANS_A_ROUND),
    }
    taken = take_turns(turns | idle, rounds)

    with tempfile.TemporaryDirectory() as folder, opentelemetry() as otel, viztracer(rounds) as viz:
        run = Path(folder) / "run"
        with recording(run):
            turns = {
                FULL: cpu_ns_each(every_column, SPANS_A_ROUND),
                "rltrace: with span(stage)": cpu_ns_each(smallest, SPANS_A_ROUND),
                "rltrace: decorated function": cpu_ns_each(decorated, SPANS_A_ROUND),
                "rltrace: async with span(stage)": cpu_ns_each(asynchronous, SPANS_A_ROUND),
                OPENTELEMETRY: after(otel[1], cpu_ns_each(otel[0], OTHERS_A_ROUND)),
                VIZTRACER: cpu_ns_each(viz, SPANS_A_ROUND),
            }
            taken |= take_turns(turns, rounds)
            kept = objects_a_span()
            in_batches = bytes_a_span(run)
        in_parquet = compacted_bytes_a_span(Path(folder) / "synthetic")

    result.rows = {name: spread(values) for name, values in taken.items()}

    def over(name: str) -> list[float]:
        return [ours / theirs for ours, theirs in zip(taken[FULL], taken[name], strict=True)]

    without = [idle - loop for idle, loop in zip(taken[IDLE], taken[LOOP], strict=True)]
    result.notes["bytes of a row by the schema"] = str(SPANS.row_bytes)
    result.checks = [
        Check.median("a span, every column, two deep", taken[FULL], None, "ns"),
        Check.median("a span / an OpenTelemetry SDK span", over(OPENTELEMETRY), 1 / 15),
        Check.median("a span / VizTracer's log_event", over(VIZTRACER), 1.0),
        Check.median("a span with no run, the loop taken off", without, 100, "ns"),
        Check("Python objects kept per span", kept, 0.001, ""),
        Check("bytes per span in full batches", in_batches, 64, "B"),
        Check("bytes per span once compacted", in_parquet, 12, "B"),
    ]
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
