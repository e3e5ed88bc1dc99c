"""wandb's files of a run: history rows, and words of its configuration.

`run-*.wandb`, which it also keeps of a run that it uploads, is a log of LevelDB's kind: blocks of
32 KiB with checked pieces of records, each a protobuf `Record` of wandb_internal.proto.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rltrace.adapters.log_table import LogRecord, ns
from rltrace.importers.formats.event_files import fields
from rltrace.importers.log_records import Torn, check_many, split
from rltrace.trace.untrusted_files import open_given

SUFFIX = ".wandb"  # what the name of every such file ends with

_START = b":W&B\xe1\xbe\x00"  # mark, magic number, version
_BLOCK_BYTES = 32768  # the first one begins with _START
_PIECE = struct.Struct("<IHB")  # checksum of kind and bytes, how many, kind
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

_HISTORY, _CONFIG, _RUN = 2, 5, 17  # fields of Record
_RUN_CONFIG = 4  # of RunRecord
_ITEM, _STEP = 1, 2  # of HistoryRecord; the items of a ConfigRecord are its updates
_KEY, _NESTED_KEY, _JSON = 1, 2, 16  # of HistoryItem and ConfigItem


def looks_like(start: bytes) -> bool:
    return start.startswith(_START)


def read(
    path: Path, settings: Mapping[str, re.Pattern[str]]
) -> tuple[list[LogRecord], list[str], dict[str, str]]:
    """The numbers of each history row, by wandb's own step, what was skipped, and the first match
    (group 1) of each pattern in `settings` in the run's configuration, as `name=value`. Errors:
    OSError."""
    records: list[LogRecord] = []
    said: dict[str, str] = {}
    skipped: list[str] = []
    try:
        for at, message in _messages(path):
            try:
                _take(message, settings, records, said)
            except (AttributeError, IndexError, RecursionError, TypeError, ValueError):
                raise Torn(f"byte {at}") from None
    except Torn as torn:
        skipped.append(f"{path.name} from {torn} on, where it is torn or damaged")
    return [record for record in records if record.readings], skipped, said


def _take(
    message: bytes, settings: Mapping[str, re.Pattern[str]], records: list[LogRecord],
    said: dict[str, str],
) -> None:  # fmt: skip
    for field, value in fields(message):
        if field == _HISTORY:
            records.append(_row(value))
            check_many(records)
        elif field == _CONFIG:
            _look_for(settings, value, said)
        elif field == _RUN:
            for inner, config in fields(value):
                if inner == _RUN_CONFIG:
                    _look_for(settings, config, said)


def _messages(path: Path) -> Iterator[tuple[int, bytes]]:
    """The records, put together from their pieces, and where each began."""
    at, began, parts = len(_START), 0, list[bytes]()
    with open_given(path) as file:
        file.seek(at)
        while head := file.read(min(_PIECE.size, left := _BLOCK_BYTES - at % _BLOCK_BYTES)):
            if left < _PIECE.size:
                at += left  # too little for a piece: filled up with zeros
                continue
            if len(head) < _PIECE.size:
                raise Torn(f"byte {at}")
            checksum, size, kind = _PIECE.unpack(head)
            piece = file.read(size)
            fits = kind in (_WHOLE, _FIRST) if not parts else kind in (_MIDDLE, _LAST)
            if len(piece) < size or not fits or checksum != zlib.crc32(bytes([kind]) + piece):
                raise Torn(f"byte {began if parts else at}")
            if not parts:
                began = at
            parts.append(piece)
            if kind in (_WHOLE, _LAST):
                yield began, b"".join(parts)
                parts = []
            at += _PIECE.size + size
    if parts:
        raise Torn(f"byte {began}")


def _row(message: bytes) -> LogRecord:
    """A history row. Of tables, pictures and the like, numbers only describe the file."""
    step, values = 0, dict[str, Any]()
    for field, value in fields(message):
        if field == _ITEM:
            values.update([_named(value)])
        elif field == _STEP:
            step = next((int(n) for inner, n in fields(value) if inner == 1), 0)
    media = tuple(name.removesuffix("_type") for name in values if name.endswith("._type"))
    metrics, infinite = split(values.items())

    def scalars(found: dict[str, float]) -> dict[str, float]:
        return {name: v for name, v in found.items() if not name.startswith(("_", *media))}

    at = int(metrics.get("_step", step))
    return LogRecord(at, scalars(metrics), ns(metrics.get("_timestamp")), scalars(infinite))


def _named(item: bytes) -> tuple[str, Any]:
    """The name of an item, a nested one's joined by dots, and its value."""
    found = list(fields(item))
    nested, plain, written = ([v for n, v in found if n == of] for of in (_NESTED_KEY, _KEY, _JSON))
    names = [name.decode("utf-8", "replace") for name in nested or plain]
    return ".".join(names), json.loads(next(iter(written), b"null"))


def _look_for(settings: Mapping[str, re.Pattern[str]], config: bytes, said: dict[str, str]) -> None:
    for field, item in fields(config):
        if field == _ITEM:
            key, value = _named(item)
            shown = f"{key}={value}" if isinstance(value, str) else f"{key}={value!r}"
            for name, pattern in settings.items():
                if name not in said and (match := pattern.search(shown)):
                    said[name] = str(match[match.lastindex or 0])
