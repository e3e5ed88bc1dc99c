"""torchtitan's structured log: JSON lines that end a span, by rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rltrace.importers.formats.chrome import lane_of
from rltrace.importers.formats.json_text import read_all
from rltrace.importers.log_detection import names_of
from rltrace.importers.log_numbers import ns, whole
from rltrace.importers.placed_events import LoggedProcess, PlacedSpan
from rltrace.importers.run_writer import ImportedRun, traced_run
from rltrace.trace.errors import RltraceError
from rltrace.trace.vocabulary import Stage

NAMES = names_of("torchtitan")

_WAITED_FOR = frozenset({"generate", "forward_backward", "optim_step", "rollout_group"})
"""What the controller only waits for: its actors do it."""


def read(path: Path) -> ImportedRun:
    """Reads a file or a folder of them. Errors: `RltraceError` where there is no span of its."""
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise RltraceError(f"{path} holds no *.jsonl of torchtitan's structured log")
    lines = read_all(files)
    return traced_run(
        path,
        "torchtitan",
        "structured log",
        "JSON lines of spans",
        _spans(lines.objects),
        lines,
        unknown=((Stage.ENV, "no span of its own"),),
    )


def _spans(lines: list[dict[str, Any]]) -> Iterator[PlacedSpan]:
    for line in lines:
        name = line.get("log_type_name")
        took_ns, end_ns = ns(line.get("value"), 1e6), ns(line.get("time_us"), 1e3)
        if not isinstance(name, str) or not name.endswith("_end"):
            continue
        name = name.removesuffix("_end")
        stage = NAMES.stage_of(name)
        if took_ns is None or end_ns is None or stage is None:
            continue
        source, rank = str(line.get("source", "")), line.get("rank")
        if source == "controller" and name in _WAITED_FOR:
            stage = Stage.WAIT
        host, step = str(line.get("host_name", "")), whole(line.get("step"))
        yield PlacedSpan(
            process=LoggedProcess(f"{source} {rank}", source, host, whole(rank)),
            lane=lane_of(line.get("task_name", line.get("tid"))),
            name=name,
            stage=stage,
            start_ns=end_ns - took_ns,
            end_ns=end_ns,
            step=-1 if step is None else step,
        )
