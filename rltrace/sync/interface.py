"""What every way of moving weights offers: a publisher makes versions, subscribers apply them.

The two sides share nothing but the `Manifest` of a version, which travels by whatever control
channel the job has (Ray calls, a queue, a file).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from rltrace.sync.layout import Layout


@dataclass(frozen=True)
class Manifest:
    """One published version: what it holds, where it lies, and the bytes that a reader reads."""

    version: int
    layout: Layout | None  # of the buffer that is fetched; None where none is
    bytes: int
    location: Any  # of the transport's own kind; subscribers of the same transport understand it


class Publisher(Protocol):
    """The learner's side."""

    def publish(self, version: int, state: Mapping[str, Tensor]) -> Manifest:
        """Takes a copy of `state`, whole, and makes it available as `version`.

        The tensors may change as soon as this returns.
        """


class Subscriber(Protocol):
    """A rollout worker's side, in two parts: the first may run beside generation."""

    def fetch(self, manifest: Manifest) -> Any:
        """Brings a published version near this process: what `load` takes. Nothing is overwritten
        yet."""

    def load(self, fetched: Any, manifest: Manifest, state: Mapping[str, Tensor]) -> int:
        """Overwrites the tensors of `state`. Returns the version that they have now: the
        manifest's, or one that has come after it.

        Errors: `RltraceError` where names, shapes or types differ; then nothing was overwritten.
        """
