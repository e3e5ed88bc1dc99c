"""Publishes a policy that a framework hands out tensor by tensor."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from typing import Any

from rltrace.hooks.span_api import Phases
from rltrace.sync.memory.control import PRESENT, enter, leave
from rltrace.sync.memory.layout import layout_of
from rltrace.sync.memory.locks import Lock
from rltrace.sync.memory.policy_memory import folder_of, make_folder
from rltrace.sync.publisher import Publisher
from rltrace.sync.version import Manifest
from rltrace.trace.errors import CANNOT_TELL, RltraceError

PATIENCE_S = 60.0  # for a slot: a reader that holds one for longer is gone or stuck


def fresh_place(framework: str) -> str:
    """Where a job publishes: a name that no other job of this host has."""
    return f"shm://{framework}-{os.getpid()}-{secrets.token_hex(4)}"


def is_seen(where: str) -> bool:
    """Whether some process has the place open in the memory that this one sees of its host."""
    return Lock.is_held(folder_of(where) / PRESENT)


class StreamPublisher:
    """Publishes the same (name, tensor) pairs each time, one by one; the first time all at once."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.run = secrets.token_hex(8)  # of all of its versions, and of nobody else's
        self.last = ""  # the version that was published last, as text
        self._publisher: Publisher | None = None
        make_folder(folder_of(where))
        self._present = enter(folder_of(where))

    def publish(self, tensors: Iterable[tuple[str, Any]], number: int = -1) -> Manifest:
        """Makes the tensors the latest version, the framework's `number`. Errors: `RltraceError`
        for a tensor that the first update did not have so, or where readers held every slot."""
        if self._publisher is None:
            # The layout takes all of them, and the next one may be gathered into the same memory.
            with Phases() as phases:
                phases.begin("sync", "hold the tensors", "gather")
                tensors = [(name, tensor.detach().to("cpu", copy=True)) for name, tensor in tensors]
                phases.begin("sync", "take the memory")
                self._publisher = Publisher.open(
                    layout_of(tensors), self.where, run=self.run, patience_s=PATIENCE_S
                )
            self._present.release()  # the publisher has a hold of its own
            self._publisher.writes_rows = False  # the framework's adapter does
        version = self._publisher.publish(tensors, number)
        if version is None:
            said = f"no slot of {self.where} was free for {PATIENCE_S:g} s: a reader holds each"
            raise RltraceError(f"{said}; the weights were not published", CANNOT_TELL)
        manifest = self._publisher.arena.manifest()
        assert manifest is not None
        self.last = str(version)
        return manifest

    def close(self) -> None:
        self._present.release()
        if self._publisher is not None:
            self._publisher.close()
        else:
            leave(folder_of(self.where))
