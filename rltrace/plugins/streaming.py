"""A policy that a framework hands out tensor by tensor, as it gathers them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from typing import Any

from rltrace.hooks.phases import Phases
from rltrace.sync.layout import Layout, layout_of
from rltrace.sync.publisher import Publisher
from rltrace.sync.version import Manifest
from rltrace.trace.errors import CANNOT_TELL, RltraceError

PATIENCE_S = 60.0
"""How long an update that a framework waits for may itself wait for a slot: its readers hold one no
longer than they load from it, so whoever does so longer is gone or stuck."""


def fresh_place(framework: str) -> str:
    """Where a job publishes: a name that no other job of this host has."""
    return f"shm://{framework}-{os.getpid()}-{secrets.token_hex(4)}"


class StreamPublisher:
    """Publishes what an iterable of (name, tensor) yields, each time the same tensors. The first
    update takes the memory, and alone has all tensors at once; later ones hold no more of them than
    the iterable does."""

    def __init__(self, where: str, lasting: bool = True) -> None:
        """Not `lasting`: a tensor is only good until the next one is asked for."""
        self.where = where
        self._lasting = lasting
        self._publisher: Publisher | None = None

    @property
    def next_counter(self) -> int:
        """The counter of the version that the next update will be."""
        return 1 if self._publisher is None else self._publisher.arena.control.counter + 1

    def publish(self, tensors: Iterable[tuple[str, Any]], number: int = -1) -> Manifest:
        """Makes the tensors the latest version; `number` is what the framework calls it.

        Errors: `RltraceError` that names a tensor that the first update did not have, or not so; or
        where readers held every slot for `PATIENCE_S`.
        """
        if self._publisher is None:
            # All at once, so that those that are one in memory are seen to be. What is on a device
            # is brought here, since a framework may gather the next tensor into the same memory.
            with Phases() as phases:
                phases.begin("sync", "hold the tensors", "gather")
                tensors = [(name, self._held(tensor)) for name, tensor in tensors]
                phases.begin("sync", "take the memory")
                self._publisher = self._open(layout_of(tensors))
        version = self._publisher.publish(tensors, number)
        if version is None:
            said = f"no slot of {self.where} was free for {PATIENCE_S:g} s: a reader holds each"
            raise RltraceError(f"{said}; the weights were not published", CANNOT_TELL)
        manifest = self._publisher.arena.manifest()
        assert manifest is not None
        return manifest

    def close(self) -> None:
        """Lets go of the policy."""
        if self._publisher is not None:
            self._publisher.close()

    def _held(self, tensor: Any) -> Any:
        here = tensor.detach().cpu()
        return here if self._lasting else here.clone()

    def _open(self, layout: Layout) -> Publisher:
        publisher = Publisher.open(layout, self.where, patience_s=PATIENCE_S)
        publisher.writes_rows = False  # the framework's adapter does
        return publisher
