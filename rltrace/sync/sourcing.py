"""The top of a tree: what the learner publishes on this host, put on the shelf from where it lies.

Nothing is copied. The newest version is leased, as the next one's changes are changes of it; while
they are being found both are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from rltrace.hooks.span_api import span
from rltrace.sync.arena import Arena, ReplacedError, lies_here
from rltrace.sync.blocks import BLOCK_BYTES, block_count, block_range
from rltrace.sync.copying import Pieces
from rltrace.sync.dtypes import ITEM_BYTES
from rltrace.sync.encodings import Encoder
from rltrace.sync.layout import Layout
from rltrace.sync.place import check_in_memory
from rltrace.sync.shelf import Held, Shelf
from rltrace.sync.version import NO_ROOT, Behind
from rltrace.trace.errors import RltraceError, WrongUsage

_POLL_S = 0.002
_AGAIN_S = 1.0


class Source(threading.Thread):
    """Watches a policy of this host. `wants_changes` tells whether some child asked for changes."""

    def __init__(self, where: str, shelf: Shelf, wants_changes: Callable[[], bool]) -> None:
        super().__init__(name="rltrace.sync source", daemon=True)
        self.arena: Arena | None = None
        self.ended_by: RltraceError | None = None
        """What ended it."""
        check_in_memory(where)
        self._where = where
        self._shelf = shelf
        self._wants_changes = wants_changes
        self._encoder = Encoder()
        self._ended = threading.Event()
        self._since_s = time.monotonic()
        self._trouble = ""

    def run(self) -> None:
        """Until `stop`, or an error that somebody has to look at."""
        try:
            while not self._ended.wait(_POLL_S):
                self._trouble = self._look()
                if self._trouble:
                    self._ended.wait(_AGAIN_S)
        except Exception as error:  # it must not go unnoticed that nothing is served any more
            failed = RltraceError(f"serving {self._where} failed: {error!r}")
            self.ended_by = error if isinstance(error, RltraceError) else failed

    def behind(self) -> Behind:
        """How far what is served is behind the learner."""
        if self.arena is None:
            seconds = time.monotonic() - self._since_s
            return Behind(seconds, f"nothing is published at {self._where} yet")
        found = self.arena.behind()
        return found if found.why else Behind(found.seconds, self._trouble)

    def stop(self) -> None:
        """Ends the watch; what is on the shelf stays there."""
        self._ended.set()
        self.join()

    def _look(self) -> str:
        """Puts the latest version on the shelf; what keeps it from there, until a next one may."""
        newest = self._shelf.whole()[-1:]
        if self._shelf.is_awaited:
            return self._trouble
        try:
            if self.arena is None:
                if not lies_here(self._where):
                    return ""
                self.arena = Arena.attach(self._where, _AGAIN_S)
            arena = self.arena
            if arena.latest() == (newest[0].manifest.version if newest else None):
                return ""
            lease = arena.lease()
        except ReplacedError:
            for held in self._shelf.whole():
                self._shelf.remove(held)
            arena.close()
            self.arena = None
            return ""
        except RltraceError as error:  # it is damaged, or being removed
            return str(error)
        if lease is None:
            return ""
        if lease.manifest.root == NO_ROOT:
            lease.release()
            said = "a policy that is published without hashing cannot be served to other hosts"
            raise WrongUsage(said)
        fresh = Held.leased(lease, arena.layout)
        if newest:
            self._replace(newest[0], fresh)
        else:
            self._shelf.add(fresh)
        return ""

    def _replace(self, before: Held, fresh: Held) -> None:
        base, manifest = before.manifest.version, fresh.manifest
        encodes = base.run == manifest.version.run and self._wants_changes()
        if encodes:
            fresh.encode_against(base)
        self._shelf.add(fresh)
        if encodes:
            size = manifest.bytes
            with span("sync", "find changes", "convert", version=manifest.number, bytes=size):
                for block, width in enumerate(widths_of(fresh.layout)):
                    if self._ended.is_set():
                        return
                    part = slice(*block_range(block, size))
                    old, new = before.data[part], fresh.data[part]
                    fresh.put(block, self._encoder.encode(old, new, width))
        self._shelf.remove(before)


def widths_of(layout: Layout) -> list[int]:
    """The element width of each block, in bytes: that of most of its bytes."""
    pieces, widths = Pieces(layout), np.array([ITEM_BYTES[e.dtype] for e in layout.entries])
    shares = np.zeros((block_count(layout.bytes), 9), np.int64)
    np.add.at(shares, (pieces.offset // BLOCK_BYTES, widths[pieces.entry]), pieces.length)
    return [int(width) for width in shares.argmax(axis=1)]
