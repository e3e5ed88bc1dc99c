"""The importers' parsers: logs of finished jobs, in every format and of every framework."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rltrace.testing.inside.importers import (
    MAPPED,
    ImportedRun,
    event_files,
    importers,
    read_log,
    read_names,
    read_run,
    write_run,
)
from rltrace.testing.inside.trace import TABLES, RunFiles, read_described
from tests.fuzz.target import Target, costly, modules, parts, put, reading

_FIXTURES = Path(__file__).parent.parent / "importers" / "fixtures"
_WRITTEN = 32  # of so many inputs, one is made a run of and read again
_START = b":W&B\xe1\xbe\x00"

MAPPING = (Path(__file__).parent / "seeds/mapping/own").read_bytes()


def framed_events(*messages: bytes) -> bytes:
    """Messages as records of an event file, with their checksums."""

    def record(message: bytes) -> bytes:
        length = struct.pack("<Q", len(message))
        sums = [struct.pack("<I", event_files.checksum(part)) for part in (length, message)]
        return length + sums[0] + message + sums[1]

    return b"".join(map(record, messages))


def framed_wandb(*messages: bytes) -> bytes:
    """Messages as whole pieces of wandb's file, with their checksums."""
    found = _START
    for message in messages:
        found += struct.pack("<IHB", zlib.crc32(b"\1" + message), len(message) & 0xFFFF, 1)
        found += message
    return found


def _read_frames(framed: Callable[..., bytes], data: bytes, folder: Path) -> None:
    """A format with checksums: what stands between them is fuzzed, or the file as it is."""
    if data[:1] == b"\0":
        data = framed(*parts(data[1:], 4))
    read_log(put(folder / "log", data))


def _read(name: str, data: bytes, folder: Path) -> None:
    mapping = b""
    if name in MAPPED:
        mapping, data = parts(data, 2)
        mapping = mapping or MAPPING
    given = put(folder / "map.toml", mapping) if mapping else None
    found = read_run(put(folder / "log", data), name, given)
    if costly(data, _WRITTEN):
        _write(found, folder / "run")


def _write(found: ImportedRun, path: Path) -> None:
    """The run of a log, which every reader takes."""
    try:
        write_run(path, found, "test")
        files = RunFiles(path, read_described(str(path)))
        for table in TABLES:
            files.columns(table)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _fixture(*names: str) -> list[bytes]:
    """Logs of real jobs, those that are not larger than a fuzzer likes."""
    files = [file for name in names for file in sorted(_FIXTURES.glob(name)) if file.is_file()]
    return [file.read_bytes()[:6000] for file in files]


def _seeds(name: str) -> list[bytes]:
    found = {
        "verl": ("legacy_console.log", "v1_sync.jsonl", "verl.wandb", "separate_async/*"),
        "openrlhf": ("openrlhf_console.log", "openrlhf_async_console.log", "openrlhf.wandb"),
        "trl": ("trl_console.log", "trl_async_state.json"),
        "areal": ("areal/*",),
    }
    return _fixture(*found.get(name, ()))


def _of(name: str) -> Target:
    return Target(
        name, partial(_read, name), modules(_I, "reading durations"), partial(_seeds, name)
    )


_I = "rltrace.importers"

TARGETS = (
    *map(_of, importers()),
    Target(
        "event-files",
        partial(_read_frames, framed_events),
        modules(_I, "event_files protobuf log"),
    ),
    Target(
        "wandb-files",
        partial(_read_frames, framed_wandb),
        modules(_I, "wandb_files protobuf reading"),
        lambda: _fixture("verl.wandb"),
    ),
    Target(
        "mapping",
        reading(read_names, "map.toml"),
        modules(_I, "placed toml_file"),
    ),
)
