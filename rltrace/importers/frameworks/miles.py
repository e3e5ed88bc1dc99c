"""miles: the dashboard's log of phases, or figures named as slime's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from rltrace.importers.formats.json_text import read_all
from rltrace.importers.log_detection import names_of
from rltrace.importers.log_numbers import ns, whole
from rltrace.importers.log_records import files_of
from rltrace.importers.placed_events import LoggedProcess, PlacedSpan
from rltrace.importers.run_writer import ImportedRun, traced_run
from rltrace.importers.scalars import Scheme
from rltrace.trace.vocabulary import Stage

NAMES = names_of("miles")
MILES = Scheme.of("miles")

_ROLES = {"train": "learner", "rollout_manager": "rollouter"}


def read(path: Path) -> ImportedRun:
    """Phases, a dashboard's folder, or else figures. Errors: `RltraceError` for none of these."""
    files = files_of(path, b'"t0"', "phases.jsonl", "phases/*.jsonl")
    if not files:
        return MILES(path)
    lines = read_all(files)
    return traced_run(
        path,
        "miles",
        "dashboard",
        "JSON lines of phases",
        _spans(lines.objects),
        lines,
        unknown=[(stage, "no phase of its own") for stage in (Stage.REWARD, Stage.ENV)],
        notes=["phases have no step: a step lasts from one rollout to the next"],
    )


def _spans(lines: list[dict[str, Any]]) -> Iterator[PlacedSpan]:
    generations = []
    for line in lines:
        start_ns, end_ns = ns(line.get("t0")), ns(line.get("t1"))
        name = str(line.get("name", ""))
        stage = NAMES.stage_of(name)
        if start_ns is None or end_ns is None or stage is None or end_ns < start_ns:
            continue
        rank, role = line.get("rank"), str(line.get("role", ""))
        host = str(line.get("node", ""))
        process = LoggedProcess(f"{role} {rank}", _ROLES.get(role, role), host, whole(rank))
        span = PlacedSpan(process, 0, name, stage, start_ns, end_ns)
        if stage == Stage.ROLLOUT:
            generations.append(span)
        yield span
    generations.sort(key=lambda span: span.start_ns)
    for first, then in pairwise(generations):
        yield PlacedSpan(first.process, 1, "step", Stage.STEP, first.start_ns, then.start_ns)
