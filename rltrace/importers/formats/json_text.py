"""JSON of traces: an object, an array, or many; perhaps cut short."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.importers.log_records import check_filled, readable
from rltrace.trace.errors import RltraceError
from rltrace.trace.untrusted_files import open_given, unpacked

_BETWEEN = re.compile(r"[\s,\]]*")
_ARRAY = re.compile(r'"traceEvents"\s*:\s*\[')


@dataclass(frozen=True)
class Objects:
    """`beside` is what stands beside the objects where they are in one, `notes` what is to be said
    of the file, `changed_ns` when it was last written (Unix ns)."""

    objects: list[dict[str, Any]]
    beside: dict[str, Any]
    notes: tuple[str, ...]
    changed_ns: int


def read_objects(path: Path, array: str = "") -> Objects:
    """The objects of a file, of a whole one those in its `array`, if it has such. Errors:
    `RltraceError` for one that is missing, empty or without any."""
    with readable(path), open_given(path) as file:
        data = file.read()
        changed_ns = path.stat().st_mtime_ns
    try:
        data = unpacked(data)
    except ValueError as error:
        raise RltraceError(f"{path} cannot be read: {error}") from None
    check_filled(path, data)
    text = data.decode("utf-8-sig", "replace").strip()
    del data  # beside the values it would be a third of the memory
    try:
        whole = json.loads(text)
    except ValueError:
        return _pieces(path, text, array, changed_ns)
    except RecursionError:
        raise RltraceError(f"{path} is no trace: its JSON is nested too deep") from None
    if isinstance(whole, dict) and isinstance(whole.get(array), list):
        beside = {name: value for name, value in whole.items() if name != array}
        return Objects(_dicts(whole[array]), beside, (), changed_ns)
    found = _dicts(whole if isinstance(whole, list) else [whole])
    return Objects(found, {}, (), changed_ns)


def read_all(files: Iterable[Path]) -> Objects:
    """The objects of files, one after another. Errors: as `read_objects`."""
    every = [(file.name, read_objects(file)) for file in files]
    objects = [found for _, read in every for found in read.objects]
    notes = tuple(f"{name}: {note}" for name, read in every for note in read.notes)
    return Objects(objects, {}, notes, max((read.changed_ns for _, read in every), default=0))


def _pieces(path: Path, text: str, array: str, changed_ns: int) -> Objects:
    """Objects one after another, as in lines or in an array whose end is missing."""
    start = _ARRAY.search(text) if array == "traceEvents" else None
    found: list[dict[str, Any]] = []
    skipped = 0
    for value in _objects(text, start.end() if start else len(text) - len(text.lstrip("["))):
        skipped += value is None
        if isinstance(value, dict):
            found.append(value)
    if not found:
        raise RltraceError(f"{path} is no JSON of a trace: no whole object is in it")
    note = f"skipped: {skipped} piece{'s' * (skipped > 1)} that is no whole object"
    return Objects(found, {}, (note,) * bool(skipped), changed_ns)


def _objects(text: str, at: int) -> Iterator[Any]:
    """Values from a place on; None for a piece that is none, up to the next line."""
    decoder = json.JSONDecoder()
    end = len(text.rstrip("}\n ")) + 1  # of the last object; behind it only what is around it
    while True:
        between = _BETWEEN.match(text, at)
        at = between.end() if between else at
        if at >= end:
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            line = text.find("\n", at)
            yield None
            if line < 0:
                return
            at = line + 1
            continue
        yield value


def _dicts(values: list[Any]) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)]
