"""What is read of a run that others have shipped: packs, and the folder at a URL."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path
from unittest.mock import patch

from rltrace.testing.inside.run import shipping_state as kept
from rltrace.testing.inside.run import shipping_state as kept_module
from rltrace.testing.inside.trace import (
    CACHE_VARIABLE,
    PACKS,
    SPANS,
    Piece,
    RunFiles,
    Store,
    apply,
    fetch,
    pack,
    parse_pack_name,
    read_described,
    unpack,
)
from rltrace.testing.inside.trace import remote_runs as fetched_module
from rltrace.testing.inside.trace import store as packs
from rltrace.testing.inside.trace import store as packs_module
from rltrace.testing.inside.trace import store as store_module
from tests.fuzz.of_traces import _META, segment
from tests.fuzz.target import Target, costly, parts, put, together

_AS_IT_IS = b"\0"
"""Begins an input that is a pack as it is stored; another one is its index and what it packs."""

_CONTENT = b"\n----\n"
_URL = "memory://rltrace-fuzz/run"
_PACK = "node.1800000000000000000.00000001-00000000"


def _packed(data: bytes) -> bytes:
    """A pack with its digest in front."""
    if data.startswith(_AS_IT_IS):
        return data[1:]
    index, content = parts(data, 2, _CONTENT)
    body = zlib.compress(len(index).to_bytes(8, "little") + index + content, 1)
    return packs._MAGIC + packs._digest(body) + body


def _unpack(data: bytes, folder: Path) -> None:
    try:
        pieces = unpack(_packed(data))
    except packs.NotAPack:
        return
    for piece in pieces:
        place = Path(os.path.normpath(folder / piece.path))
        assert place.parent.parent == folder, f"{piece.path} lies elsewhere"
    assert unpack(pack(pieces)) == pieces
    if costly(data, 1):
        run = folder / "run"
        run.mkdir()
        try:
            apply(pieces, run)
        finally:
            shutil.rmtree(run)


def _bodies() -> list[bytes]:
    rows = segment(SPANS, 3)
    facts = json.dumps({"pid": 1, "node": "node", "role": "trainer"}).encode()
    pieces = [
        Piece("process/a.json", 0, facts, replaced=True),
        Piece("names/a.jsonl", 0, b'[0,"gpu.util"]\n'),
        Piece("spans/a.0.arrows", 0, rows),
    ]
    index = [[piece.path, piece.offset, len(piece.data), piece.replaced] for piece in pieces]
    content = b"".join(piece.data for piece in pieces)
    found = [(json.dumps(index).encode(), content), (b"[]", b"")]
    return [*(_CONTENT.join(one) for one in found), _AS_IT_IS + pack(pieces)]


def _fetch(data: bytes, folder: Path) -> None:
    """A folder with packs, or one with the plain files of a run."""
    run, node, piece, names = parts(data, 4)
    store = Store(_URL)
    for name in [*store.sizes(deep=True)]:
        store._files.rm_file(store._path(name))
    store.put("run.json", run)
    store.put("nodes/node.json", node)
    if piece:
        store.put(f"{PACKS}/{_PACK}", _packed(piece))
    else:
        store.put("names/a.jsonl", names)
    parse_pack_name(names.decode("utf-8", "replace"))
    with patch.dict(os.environ, {CACHE_VARIABLE: str(folder / "cache")}):
        try:
            path = fetch(_URL)
            RunFiles(path, read_described(str(path)))
        finally:
            shutil.rmtree(folder / "cache", ignore_errors=True)


def _folders() -> list[bytes]:
    run = json.dumps({**_META, "end_real_ns": 10**18 + 5}).encode()
    node = json.dumps({"host": "h", "shipped": False, "directory": "/runs/a"}).encode()
    return [together(run, node, _bodies()[0]), together(run, node, b"", b'[0,"x"]\n')]


def _read_kept(data: bytes, folder: Path) -> None:
    """What a run says of how far its shipping is."""
    (folder / kept.SHIPPING).mkdir(exist_ok=True)
    progress, pages = parts(data, 2)
    put(folder / kept.SHIPPING / "node.json", progress)
    put(folder / kept.SHIPPING / "node.pages", pages)
    kept.read_progress(folder, "node")
    kept.load(folder, _URL)


TARGETS = (
    Target("pack", _unpack, (packs_module.__name__,), _bodies),
    Target("shipped-run", _fetch, (fetched_module.__name__, store_module.__name__), _folders),
    Target("shipping", _read_kept, (kept_module.__name__,)),
)
