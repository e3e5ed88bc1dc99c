"""The manifest of a compacted run: its files and what they hold.

A table is cut into parts where steps begin, each a file of the rows that began in it, so that one
step of a long run is read without the rest. What goes on beyond its part is among the `carried`
rows, too, which only who reads a range looks at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.errors import RltraceError
from rltrace.trace.metadata_validation import problem_of
from rltrace.trace.read.bounds import EVER_NS
from rltrace.trace.run_dir import PARQUET
from rltrace.trace.schema import CAPTURED_TOKENS, EVENT_TABLES, SCHEMA_VERSION, TABLES
from rltrace.trace.segment import STREAM
from rltrace.trace.untrusted_files import own_files, parsed, read_own

LOADING_PROBLEMS = ("torn-file", "no-process-file", "impossible-values", "impossible-times")
"""Problems that are seen when segments are read, and would be forgotten with them."""

MANIFEST_FILE = "manifest.json"
NAMES_FILE, STEPS_FILE = "names.parquet", "steps.parquet"
PART_BYTES = 64 << 20  # of a part's rows, as segments have them: about a million spans


@dataclass(frozen=True)
class TablePart:
    """A file of the rows that began from `from_ns` on and before `until_ns` (Unix), in that order.
    `steps`: the first and the last that began then."""

    path: Path
    rows: int
    from_ns: int
    until_ns: int
    steps: tuple[int, int] | None


@dataclass(frozen=True)
class CompactManifest:
    """Where the compacted tables lie, their `rows`, which process each number is, and what was
    wrong with the segments. `steps` is the file of all spans of steps (None in a run compacted
    before there were parts). `taken` is what of each segment is in them, by table and file;
    `settled`: the run had ended, so a segment of the same size has no other rows."""

    tables: dict[str, tuple[TablePart, ...]]
    carried: dict[str, tuple[Path, ...]]
    names: Path
    steps: Path | None
    rows: dict[str, int]
    processes: list[str]
    problems: list[dict[str, Any]]
    taken: dict[str, dict[str, Taken]]
    settled: bool

    @property
    def files(self) -> list[Path]:
        parts = [part.path for of_table in self.tables.values() for part in of_table]
        carried = [path for paths in self.carried.values() for path in paths]
        return [*parts, *carried, self.names, *([self.steps] if self.steps else [])]

    def between(
        self, table: str, since_ns: int, until_ns: int
    ) -> tuple[list[TablePart], list[Path]]:
        """`(parts, carried)`: the files of rows that began or went on in a range of time. Of what
        was carried those rows count that began before the first of the parts."""
        parts = [p for p in self.tables[table] if p.from_ns < until_ns and p.until_ns > since_ns]
        is_first = not parts or parts[0].from_ns == -EVER_NS  # nothing began before that
        return parts, [] if is_first else list(self.carried.get(table, ()))

    def has_rest(self, run: Path, table: str) -> bool:
        """Whether a table has segments with rows that may not have been taken."""
        known, files = self.taken.get(table, {}), segment_files(run, table)
        taken = ((path, known.get(path.name)) for path in files)
        return any(not self.settled or one is None or _size(p) != one.bytes for p, one in taken)


def read_manifest(run: Path) -> CompactManifest | None:
    """The manifest; None where files are not whole, or an old one (without parts) is outgrown."""
    folder = run / PARQUET
    try:
        said = parsed(read_own(folder / MANIFEST_FILE))
        if not 1 <= said["schema_version"] <= SCHEMA_VERSION:
            return None
        found = _in_parts(folder, said) if "tables" in said else _in_one_file(run, said)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return None
    return found if found is not None and _are_there(folder, found.files) else None


def readable_manifest(run: Path) -> CompactManifest | None:
    """As `read_manifest`. Errors: `RltraceError` where only unreadable Parquet files are left."""
    found, folder = read_manifest(run), run / PARQUET
    if found is not None or any(segment_files(run, table) for table in TABLES):
        return found
    if any(True for name in ("*.parquet", "*/*.parquet") for _ in folder.glob(name)):
        raise RltraceError(
            f"{run} cannot be read: its segments were deleted, and {folder}, which has what was in "
            f"them, is not whole: {_why_not(folder)}"
        )
    return None


def _why_not(folder: Path) -> str:
    try:
        version = parsed(read_own(folder / MANIFEST_FILE))["schema_version"]
    except FileNotFoundError:
        return f"{MANIFEST_FILE} is missing; bring it back"
    except (OSError, ValueError, LookupError, TypeError):
        return f"{MANIFEST_FILE} is damaged; bring it back"
    if isinstance(version, int) and version > SCHEMA_VERSION:
        return "a later version of rltrace has written it; read it with that"
    return f"files that {MANIFEST_FILE} names are missing, or no files of its own; bring them back"


def _are_there(folder: Path, files: list[Path]) -> bool:
    """Whether all are plain files in the folder or its own folders, and no two the same."""
    folders = {file.parent for file in files}
    plain = {path for inside in folders for path in own_files(inside, ".parquet")[0]}
    return len(set(files)) == len(files) and plain.issuperset(files)


def _in_parts(folder: Path, said: Mapping[str, Any]) -> CompactManifest:
    return CompactManifest(
        tables={
            table: tuple(
                TablePart(
                    _inside(folder, part["file"]),
                    int(part["rows"]),
                    int(part["from_ns"]),
                    int(part["until_ns"]),
                    (int(part["steps"][0]), int(part["steps"][1])) if part["steps"] else None,
                )
                for part in _of(folder, said["tables"], table, [])
            )
            for table in TABLES
        },
        carried={
            table: tuple(_inside(folder, file) for file in files)
            for table, files in said["carried"].items()
        },
        names=folder / NAMES_FILE,
        steps=folder / STEPS_FILE,
        rows={table: int(_of(folder, said["rows"], table, 0)) for table in TABLES},
        processes=[str(who) for who in said["processes"]],
        problems=[problem_of(problem) for problem in said["problems"]],
        taken={
            table: {
                file: Taken(int(slots), tuple(map(int, left)), int(size))
                for file, (slots, size, left) in _of(folder, said["taken"], table, {}).items()
            }
            for table in TABLES
        },
        settled=bool(said["settled"]),
    )


def _of(folder: Path, said: Mapping[str, Any], table: str, otherwise: Any) -> Any:
    """What is said of a table. Of captured tokens there may be nothing: in an older run, and where
    somebody deleted them. Errors: KeyError for any other table, TypeError."""
    if table == CAPTURED_TOKENS.name and (table not in said or not (folder / table).exists()):
        return otherwise
    return said[table]


def _inside(folder: Path, file: str) -> Path:
    """Errors: ValueError for a file that lies elsewhere, or deeper."""
    parts = Path(file).parts
    if len(parts) != 2 or Path(file).is_absolute() or ".." in parts:
        raise ValueError(file)
    return folder.joinpath(*parts)


def _in_one_file(run: Path, said: Mapping[str, Any]) -> CompactManifest | None:
    """As they were compacted before there were parts."""
    if any(segment_bytes(run, t) not in (0, said["segment_bytes"][t]) for t in EVENT_TABLES):
        return None
    folder = run / PARQUET
    rows = {table: int(said["rows"][table]) for table in EVENT_TABLES}
    whole = {
        table: (TablePart(folder / f"{table}.parquet", rows[table], -EVER_NS, EVER_NS, None),)
        for table in EVENT_TABLES
    }
    return CompactManifest(
        tables={CAPTURED_TOKENS.name: (), **whole},
        carried={},
        names=folder / NAMES_FILE,
        steps=None,
        rows={CAPTURED_TOKENS.name: 0, **rows},
        processes=[str(who) for who in said["processes"]],
        problems=[problem_of(problem) for problem in said["problems"]],
        taken={
            table: {p.name: Taken(EVER_NS, (), _size(p)) for p in segment_files(run, table)}
            for table in TABLES
        },
        settled=True,
    )


def segment_bytes(run: Path, table: str) -> int:
    return sum(_size(path) for path in segment_files(run, table))


def _size(path: Path) -> int:
    """Bytes of a file; none of one that is deleted at this moment."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def segment_files(run: Path, table: str) -> list[Path]:
    return own_files(run / table, STREAM)[0]


@dataclass(frozen=True)
class Taken:
    """The rows at the first `slots` places of a segment, of `bytes` then, but for those `left` (in
    order): they had not ended. A job that goes on loses no row, and none comes twice."""

    slots: int
    left: tuple[int, ...]
    bytes: int

    def covers(self, first: int, rows: int) -> bool:
        """Whether all of so many places from `first` on have been taken."""
        if first + rows > self.slots:
            return False
        at = bisect_left(self.left, first)
        return at == len(self.left) or self.left[at] >= first + rows

    def has(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (places < self.slots) & ~np.isin(places, self.left)
