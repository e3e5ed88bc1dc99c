"""Compacts runs: Parquet files of all tables, and their manifest.

Times are aligned and names are global, so a compacted table needs nothing but `names` and the
process files. Rows are sorted by time, which is what makes them small: `start_ns` is delta-encoded.
Of a run that is still recorded the rows that have ended are compacted; the manifest says which, and
the rest is read from the segments.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.trace.compact.manifest import (
    LOADING_PROBLEMS,
    MANIFEST_FILE,
    NAMES_FILE,
    PART_BYTES,
    STEPS_FILE,
    CompactManifest,
    TablePart,
    read_manifest,
    readable_manifest,
    segment_bytes,
    segment_files,
)
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.liveness import Liveness, heard_of_s
from rltrace.trace.run_dir import PARQUET, write_json
from rltrace.trace.safe_open import alone
from rltrace.trace.schema import SCHEMA_VERSION, TABLES
from rltrace.trace.transfer.remote_runs import brought_from
from rltrace.trace.untrusted_files import is_elsewhere

if TYPE_CHECKING:
    from rltrace.trace.compact.manifest import Taken
    from rltrace.trace.read.run import OpenedRun


_SILENT_S = 600.0  # a run without an end that was silent for so long is over


@dataclass(frozen=True)
class Compaction:
    """What compacting did, by table, in rows and bytes of files; `settled`: nothing is left."""

    rows: dict[str, int]
    segment_bytes: dict[str, int]
    parquet_bytes: dict[str, int]
    settled: bool


def compact(
    run: OpenedRun, progress: Callable[[str], None] | None = None, part_bytes: int = PART_BYTES
) -> Compaction:
    """Writes the Parquet files of a run; its segments stay. `progress` is told each table's name; a
    part has rows of about `part_bytes`. Errors: `RltraceError` when the disk is full (which leaves
    no file), the folder is a link, or compacted segments are gone and others have come."""
    folder = run.path / PARQUET
    if is_elsewhere(folder):  # what lies there would be deleted
        raise RltraceError(f"{run.path} is not compacted: {folder} is a link to another place")
    try:
        with alone(run.path):
            return _compacted(run, folder, progress, part_bytes)
    except OSError as error:
        raise RltraceError(_why_not(run.path, folder, error)) from None


def _why_not(run: Path, folder: Path, error: OSError) -> str:
    kept = "its segments are as they were and are read as before"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        said = f"{run} is not compacted, since its disk is full ({folder} cannot be written)"
        return f"{said}: {kept}; free some room, or compact a copy on another disk"
    return f"{run} is not compacted, since {folder} cannot be written ({error.strerror}): {kept}"


def _compacted(
    run: OpenedRun, folder: Path, progress: Callable[[str], None] | None, part_bytes: int
) -> Compaction:
    """Errors: as `compact`, OSError."""
    before = {name: segment_bytes(run.path, name) for name in TABLES}
    known = readable_manifest(run.path)  # what cannot be read would be deleted
    ended = not _is_being_recorded(run)
    if known is not None:
        if not any(known.has_rest(run.path, name) for name in TABLES):
            return Compaction(known.rows, before, _bytes(known), known.settled)
        files = [run.path / table / file for table in TABLES for file in known.taken[table]]
        if not all(file.exists() for file in files):
            raise RltraceError(
                f"{run.path} cannot be compacted again: segments of what was compacted before are "
                "gone; it is read as it is, with what has come since"
            )
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)  # from here on the segments are read
    for old in folder.iterdir():
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    try:
        said = _written(run.path, folder, ended, progress, part_bytes)
        write_json(str(folder / MANIFEST_FILE), said)
    except BaseException:  # a part of it takes room on a full disk, and nobody reads it
        shutil.rmtree(folder, ignore_errors=True)
        raise
    found = read_manifest(run.path)
    if found is None:
        raise RltraceError(f"{folder} was changed while it was written: compact it again")
    return Compaction(found.rows, before, _bytes(found), ended)


def _bytes(manifest: CompactManifest) -> dict[str, int]:
    return {
        table: sum(part.path.stat().st_size for part in manifest.tables[table])
        + sum(path.stat().st_size for path in manifest.carried.get(table, ()))
        for table in TABLES
    }


def _written(
    path: Path,
    folder: Path,
    ended: bool,
    progress: Callable[[str], None] | None,
    part_bytes: int,
) -> dict[str, object]:
    """Writes the tables into `folder`; what the manifest says."""
    import numpy as np
    import pyarrow as pa

    from rltrace.trace.compact.sorted_parts import SortedParts, Writer, survey
    from rltrace.trace.compact.stored_rows import STEP_COLUMNS
    from rltrace.trace.metadata_validation import read_described
    from rltrace.trace.read.run_files import RunFiles

    files = RunFiles(path, read_described(str(path)))
    tables: dict[str, list[TablePart]] = {}
    carried: dict[str, list[Path]] = {}
    taken: dict[str, dict[str, Taken]] = {}
    steps = np.empty((0, 4), np.int64)
    starts = steps[:, :2]  # `(step, start_ns)` of the process with most steps
    with Writer() as writer:
        for name, table in TABLES.items():
            if progress is not None:
                progress(name)
            found = survey(files, table, ended)
            if name == "spans" and len(steps := found.steps):
                process, count = np.unique(steps[:, 3], return_counts=True)
                starts = steps[steps[:, 3] == process[np.argmax(count)], :2]
            parts = SortedParts(files, table, found, starts, folder, part_bytes, writer)
            tables[name], carried[name], taken[name] = parts.write(), parts.carried, found.taken
        of_steps = {name: steps[:, i] for i, name in enumerate(STEP_COLUMNS)}
        writer.write(pa.table(of_steps), folder / STEPS_FILE)
        texts = list(files.names)
        ids = np.arange(len(texts), dtype=np.int32)
        named = pa.table({"id": ids, "text": pa.array(texts, pa.string())})
        writer.write(named, folder / NAMES_FILE)

    def inside(path: Path) -> str:
        return str(path.relative_to(folder))

    def described(part: TablePart) -> dict[str, object]:
        facts = dict(vars(part))
        return {"file": inside(facts.pop("path")), **facts}

    return {
        "schema_version": SCHEMA_VERSION,
        "settled": ended,
        "rows": {name: sum(part.rows for part in parts) for name, parts in tables.items()},
        "tables": {name: [*map(described, parts)] for name, parts in tables.items()},
        "carried": {name: [*map(inside, paths)] for name, paths in carried.items()},
        "taken": {
            name: {file: [one.slots, one.bytes, list(one.left)] for file, one in of_table.items()}
            for name, of_table in taken.items()
        },
        "processes": [process.who for process in files.processes],
        "problems": [p for p in files.problems if p["what"] in LOADING_PROBLEMS],
    }


def delete_segments(run: Path) -> None:
    """Deletes a run's segments. Errors: `RltraceError` where not all of it is compacted."""
    with alone(run):
        manifest = read_manifest(run)
        if manifest is None:
            raise RltraceError(f"{run} is not compacted: its segments are all there is")
        if not manifest.settled or any(manifest.has_rest(run, table) for table in TABLES):
            raise WrongUsage(
                f"{run} was still being recorded: its segments hold what has come since, or are of "
                "another run (`rltrace info`)"
            )
        for table in TABLES:
            for path in segment_files(run, table):
                path.unlink()


def check_deletable(run: OpenedRun) -> None:
    """Errors: `RltraceError` where more segments may come: the run goes on, or is of a URL."""
    if (url := brought_from(run.path)) is not None:
        said = f"{run.path} is a copy of {url}, to which the next command adds what has come there"
        raise WrongUsage(f"{said}: compact it without --delete-segments")
    if _is_being_recorded(run):
        said = f"{run.path} is still being recorded, into its segments: leave out --delete-segments"
        raise WrongUsage(f"{said}, or ask again once it has ended")


def _is_being_recorded(run: OpenedRun) -> bool:
    """Whether more may come: a process but the agent lives here (left in the background, say), or
    the run has no end, nobody here can tell whether it goes on, and it was not long silent."""
    liveness = Liveness(run.path)
    others = (p for p in run.processes if p.role != "agent" and p.pid != os.getpid())
    if any(map(liveness.of_process, others)):
        return True
    if run.meta.get("end_real_ns") is not None:
        return False
    own = {"wrap_pid": -1} if run.meta.get("wrap_pid") == os.getpid() else {}
    lives = liveness.of_command({**run.meta, **own})
    return time.time() - heard_of_s(run.path) < _SILENT_S if lives is None else lives
