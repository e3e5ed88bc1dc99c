"""Perfetto's real engine for tests: opens a trace and answers SQL about what it made of it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfetto.trace_processor import TraceProcessor

_SERVER = Path(__file__).with_name("trace_processor.mjs")


class Trace:
    def __init__(self, processor: TraceProcessor) -> None:
        self._processor = processor

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a PerfettoSQL query, whose columns must have different names."""
        return [tuple(row.__dict__.values()) for row in self._processor.query(query)]

    def problems(self) -> list[tuple[Any, ...]]:
        """What the engine says was wrong with the trace."""
        return self.rows(
            "SELECT name, value FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')"
        )


@contextmanager
def opened(path: Path, engine: Path) -> Iterator[Trace]:
    """The trace at `path` in the engine of a folder (the fixture `engine`), run by Node."""
    server = subprocess.Popen(
        ["node", str(_SERVER), str(engine)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port, "the engine did not start"
        processor = TraceProcessor(trace=str(path), addr=f"127.0.0.1:{port}")
        yield Trace(processor)
        processor.close()
    finally:
        server.terminate()
        server.wait()
