"""What the relays of a network read of each other."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from xxhash import xxh3_64_intdigest

from rltrace.testing.inside.hooks import span
from rltrace.testing.inside.sync import (
    DENSE,
    Address,
    Connection,
    Encoder,
    Fetch,
    GoneError,
    Held,
    Landing,
    Layout,
    LinkError,
    Node,
    RefusedError,
    Shelf,
    Version,
    checked,
    digests_of,
    frames,
    layout_of,
    root_of,
    wire,
)
from rltrace.testing.inside.sync import FrameKind as Kind
from rltrace.testing.inside.sync import VersionFollower as Follower
from rltrace.testing.inside.sync import VersionServer as Server
from rltrace.testing.inside.sync import version_Manifest as Manifest
from rltrace.testing.inside.trace import RltraceError
from tests.fuzz.target import BETWEEN, Target, modules, parts, together

_TOKEN = b"token"
_AS_IT_IS = b"\0"
"""Begins an input that stands for all that comes, handshake included."""

_BYTES = 1000  # of the weights: one block, not a whole one
_MOST_BYTES = 1 << 20
_RUN = "0123456789abcdef"
_LAYOUT = layout_of({"w": np.zeros(_BYTES // 2, np.float16)})
_BASE_DATA = np.arange(_BYTES, dtype=np.uint32).astype(np.uint8)
_DATA = _BASE_DATA.copy()
_DATA[100:104] += 1
_HEADER, _CHECK, _ENTRY = frames._HEADER, frames._CHECK, frames._ENTRY
_PARENT = Address("127.0.0.1", 9, "policy")


class _Peer:
    """A socket; what comes in through it is an input, what is said to it goes nowhere. `answer` is
    what comes after the first that is said."""

    def __init__(self, comes: bytes, answer: Callable[[bytes], bytes] | None = None) -> None:
        self._comes = memoryview(comes)
        self._answer = answer

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 9

    def nothing(self, *_: object) -> None:
        pass

    setsockopt = settimeout = shutdown = close = nothing

    def sendmsg(self, said: Sequence[bytes | memoryview]) -> int:
        if self._answer is not None:
            self._comes = memoryview(self._answer(b"".join(said)))
            self._answer = None
        return sum(len(part) for part in said)

    def recv(self, size: int, _: int) -> bytes:
        return bytes(self._comes[:size])

    def recv_into(self, into: memoryview, flags: int) -> int:
        count = min(len(into), len(self._comes))
        into[:count], self._comes = self._comes[:count], self._comes[count:]
        return count


class _Shelf(Shelf):
    """Nobody waits for a newer version."""

    def newer(self, after: Version | None, timeout_s: float, child: object = None) -> Held | None:
        return super().newer(after, min(timeout_s, 0.0), child)


def _version(counter: int, data: frames.Bytes) -> Held:
    digests = digests_of(data)
    version = Version(_RUN, 1, counter)
    manifest = Manifest(version, counter, _LAYOUT.id, len(data), root_of(digests))
    return Held(manifest, _LAYOUT, digests, data, is_whole=True, let_go=lambda: None)


_HELD = _version(2, _DATA)
_BASE = Version(_RUN, 1, 1)


@cache
def _server() -> Server:
    """One with a version and a child, so that another child is sent to that one."""
    shelf = _Shelf()
    shelf.add(_HELD)
    server = Server(shelf, "policy", "127.0.0.1", 0, _TOKEN, fanout=1)
    server._children[cast(Connection, object())] = "tcp://127.0.0.1:9/policy"
    return server


def _framed(text: bytes, blob: bytes = b"") -> bytes:
    check = xxh3_64_intdigest(text + blob)
    return wire._MESSAGE.pack(wire._MAGIC, len(text), len(blob), check) + text + blob


def _serve(data: bytes, folder: Path) -> None:
    """What a relay reads of a child: as it is, or messages behind a handshake."""
    if data.startswith(_AS_IT_IS):
        peer = _Peer(data[1:])
    else:
        messages = b"".join(map(_framed, data.split(BETWEEN)))
        peer = _Peer(b"", lambda greeting: _proof(greeting) + messages)
    server = _server()
    server._strangers.acquire()  # as whoever accepted it has
    server._serve(cast(Any, peer))


def _proof(greeting: bytes) -> bytes:
    nonces = greeting[-wire._NONCE_BYTES :] + bytes(wire._NONCE_BYTES)
    return bytes(wire._NONCE_BYTES) + hmac.new(_TOKEN, b"client" + nonces, hashlib.sha256).digest()


def _unproved() -> list[bytes]:
    """A question without a handshake, as it is."""
    question = json.dumps({"ask": "get", "policy": "policy"}).encode()
    return [_AS_IT_IS + bytes(64) + _framed(question)]


def _follow(data: bytes, folder: Path) -> None:
    """What a relay reads of its parent: as it is, or an answer with its block table and buckets."""
    with suppress(LinkError, RefusedError, GoneError):
        if data.startswith(_AS_IT_IS):
            Connection(cast(Any, _Peer(data[1:])))._prove(_TOKEN, _PARENT)
            return
        answer, table, buckets = parts(data, 3)
        peer = _Peer(_framed(answer, table) + _with_checks(buckets))
        connection = Connection(cast(Any, peer))
        said, blob = connection.receive()
        try:
            _follower()._heed(_PARENT, said)
        except RltraceError:
            assert said.get("serves") is not None, "anything else is no end of following"
            raise
        if "manifest" not in said:
            return
        manifest, layout, digests = checked(said, blob, _LAYOUT)
        if manifest.bytes > _MOST_BYTES:
            return
        space = np.zeros(manifest.bytes, np.uint8)
        held = Held(manifest, layout, digests, space, is_whole=False, let_go=lambda: None)
        held.encode_against(_BASE)
        fetch = Fetch(held, _TOKEN, (_BASE, _BASE_DATA) if len(space) == _BYTES else None)
        try:
            with span("sync", "receive", "transfer") as receiving:
                fetch._receive(connection, receiving)
        finally:
            _check(held)


def _check(held: Held) -> None:
    """What is held for verified is."""
    for block in np.flatnonzero(held.have):
        assert digests_of(held.data)[block] == held.digests[block]


@cache
def _follower() -> Follower:
    me = Node("me", "tcp://127.0.0.1:7/policy")
    landing = Landing("shm://none", Shelf(), _TOKEN, 2, 2, True)
    return Follower(_PARENT, landing, me, lambda received: None)


def _with_checks(buckets: bytes) -> bytes:
    """Buckets with the checksums of their headers put right, as far as they can be told apart."""
    whole, at = bytearray(buckets), 0
    while at + _HEADER.size + _CHECK.size <= len(whole):
        entries = at + _HEADER.size + _CHECK.size
        count = struct.unpack_from("<H", whole, at + 6)[0]
        end = entries + count * _ENTRY.size
        table = bytes(whole[entries:end])
        check = xxh3_64_intdigest(bytes(whole[at : at + _HEADER.size]) + table)
        _CHECK.pack_into(whole, at + _HEADER.size, check)
        if len(table) != count * _ENTRY.size:
            break
        at = end + sum(_ENTRY.unpack_from(table, i * _ENTRY.size)[1] for i in range(count))
    return bytes(whole)


def _answers() -> list[bytes]:
    manifest, digests = _HELD.manifest, _HELD.digests
    above = {"id": "a", "address": "tcp://10.0.0.1:7/policy"}
    said = {"id": "b", "line": [above], "manifest": manifest.to_json(), "layout": _LAYOUT.text}
    table = digests.astype("<u8").tobytes()
    noise = np.random.default_rng(1).integers(0, 256, _BYTES).astype(np.uint8)
    news = (_DATA, _BASE_DATA ^ (noise & 1))
    deltas = [Encoder().encode(_BASE_DATA, new, 2) for new in news]
    found = [_AS_IT_IS + wire._GREETING + bytes(32) + b"+" + bytes(32)]
    for encoded in (DENSE, *deltas):
        base = None if encoded is DENSE else _BASE
        bucket = b"".join(frames.pack(_HELD, base, 0, [encoded]))
        signs = frames.pack_sign(Kind.ALIVE, manifest), frames.pack_sign(Kind.END, manifest)
        found.append(together(json.dumps(said).encode(), table, signs[0] + bucket + signs[1]))
    found.append(together(json.dumps(said).encode(), table, frames.pack_sign(Kind.GONE, manifest)))
    return found


def _read_layout(data: bytes, folder: Path) -> None:
    layout = Layout.parse(data.decode("utf-8", "replace"))
    assert Layout.parse(layout.text).id == layout.id


_S = "rltrace.sync"
TARGETS = (
    Target("sync-child", _serve, modules(_S, "serving wire version"), _unproved),
    Target(
        "sync-parent",
        _follow,
        modules(_S, "following wire frames fetching encodings layout"),
        _answers,
    ),
    Target("sync-layout", _read_layout, modules(_S, "layout"), lambda: [_LAYOUT.text.encode()]),
)
