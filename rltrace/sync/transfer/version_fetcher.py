"""Brings one version into a slot, block by block, over several connections."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from rltrace.hooks.span_api import span
from rltrace.hooks.spans import Span
from rltrace.sync.memory.block_digests import BLOCK_BYTES, block_range, digest
from rltrace.sync.memory.changed_elements import BadBlock, Bytes
from rltrace.sync.memory.encodings import DENSE, Decoder, Encoded, Encoding
from rltrace.sync.transfer import frames
from rltrace.sync.transfer.frames import BUCKET_BLOCKS, FrameKind
from rltrace.sync.transfer.version_store import GoneError, HeldVersion
from rltrace.sync.transfer.wire import Address, Connection, LinkError, RefusedError
from rltrace.sync.version import Version

MOST_DAMAGED = 4  # times damaged blocks are asked for anew before it is another parent's turn


@dataclass
class FetchProgress:
    """What bringing a version took so far. Bytes are of payloads."""

    wire_bytes: int = 0
    buckets: int = 0
    damaged: list[int] = field(default_factory=list)  # blocks, each time; all were asked for again
    broken: int = 0  # connections


class Fetch:
    """One version on its way into `held`, as changes of `base` where it is given."""

    def __init__(
        self, held: HeldVersion, token: bytes, base: tuple[Version, Bytes] | None, streams: int = 2
    ) -> None:
        self.held, self._token, self._base, self._streams = held, token, base, streams
        self.progress = FetchProgress()
        self._again: set[int] = set()
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self._aborted = False

    def run(self, parent: Address) -> None:
        """Brings all missing blocks. Errors: `LinkError`, `GoneError`: another parent may go on."""
        rounds_of_damage = 0
        while not self.held.is_whole:
            missing = np.flatnonzero(~self.held.have).tolist()
            try:
                if self._again:
                    rounds_of_damage += 1
                    if rounds_of_damage > MOST_DAMAGED:
                        raise LinkError("it keeps sending damaged blocks")
                    self._stream(parent, [(b, b + 1) for b in sorted(self._again)], again=True)
                else:
                    self._together(parent, _shares(missing, self._streams))
            except LinkError:
                if self._aborted or np.count_nonzero(~self.held.have) == len(missing):
                    raise
                # Something came: the rest is asked for again.

    def _together(self, parent: Address, shares: list[list[tuple[int, int]]]) -> None:
        with ThreadPoolExecutor(len(shares), thread_name_prefix="rltrace.sync fetch") as pool:
            futures = [pool.submit(self._stream, parent, share, False) for share in shares]
            errors = [error for future in futures if (error := future.exception())]
        for error in sorted(errors, key=lambda e: isinstance(e, LinkError)):
            raise error

    def abort(self) -> None:
        """Has `run` end at once, with a `LinkError`."""
        with self._lock:
            self._aborted = True
            for connection in self._open:
                connection.abort()

    def _stream(self, parent: Address, blocks: Sequence[tuple[int, int]], again: bool) -> None:
        manifest = self.held.manifest
        with span("sync", "receive", "transfer", version=manifest.number) as receiving:
            try:
                connection = Connection.open(parent, self._token)
            except RefusedError as error:  # it was let in before: what it said was damaged
                raise LinkError(str(error)) from error
            with self._lock:
                if self._aborted:
                    connection.abort()
                self._open.add(connection)
            try:
                asked = {
                    "ask": "get",
                    "policy": parent.policy,
                    "version": str(manifest.version),
                    "base": str(self._base[0]) if self._base and not again else None,
                    "blocks": [list(each) for each in blocks],
                    "again": again,
                }
                connection.send(asked)
                answer, _ = connection.receive()
                if answer.get("gone", True):
                    raise GoneError(f"{parent} no longer has version {manifest.version}")
                self._receive(connection, receiving)
            except LinkError:
                self.progress.broken += 1
                raise
            finally:
                with self._lock:
                    self._open.discard(connection)
                connection.abort()

    def _receive(self, connection: Connection, receiving: Span) -> None:
        held, taken_bytes = self.held, 0
        base = self._base[0] if self._base else None
        decoder = Decoder()
        scratch = np.empty(BLOCK_BYTES, np.uint8)
        while True:
            frame = frames.receive(connection, held, base)
            if frame.kind == FrameKind.END:
                return
            if frame.kind == FrameKind.GONE:
                raise GoneError("it is no longer there")
            for block, entry in enumerate(frame.entries, frame.first):
                is_dense = entry.encoding == Encoding.DENSE
                start, end = block_range(block, len(held.data))
                if entry.length > end - start or (is_dense and entry.length != end - start):
                    raise LinkError(f"{entry.length} bytes for a block of {end - start}")
                # A dense block comes straight into its place, unless that is verified already.
                out = held.data[start:end]
                payload = out if is_dense and not held.have[block] else scratch[: entry.length]
                connection.read_into(payload.data)
                if held.have[block]:
                    continue
                old = self._base[1][start:end] if self._base and frame.has_base else None
                try:
                    if not is_dense:
                        if digest(payload) != entry.hash:
                            raise BadBlock("damaged on the way")
                        decoder.decode(entry.encoding, payload, old, out)
                    if digest(out) != held.digests[block]:
                        raise BadBlock("not what it was to become")
                except BadBlock:
                    with self._lock:
                        self._again.add(block)
                        self.progress.damaged.append(block)
                    continue
                with self._lock:
                    self._again.discard(block)
                travels = DENSE if is_dense else Encoded(Encoding(entry.encoding), bytes(payload))
                held.put(block, travels)
            frame_bytes = sum(entry.length for entry in frame.entries)
            taken_bytes += frame_bytes
            receiving.set(bytes=taken_bytes)
            with self._lock:
                self.progress.buckets += bool(frame.entries)
                self.progress.wire_bytes += frame_bytes


def _shares(missing: list[int], streams: int) -> list[list[tuple[int, int]]]:
    runs: list[tuple[int, int]] = []
    for block in missing:
        if runs and runs[-1][1] == block and block - runs[-1][0] < BUCKET_BLOCKS:
            runs[-1] = (runs[-1][0], block + 1)
        else:
            runs.append((block, block + 1))
    return [runs[nth::streams] for nth in range(min(streams, len(runs)))]
