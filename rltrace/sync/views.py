"""A version as its readers see it, in place: nothing is copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from rltrace.sync.arena import Lease
from rltrace.sync.layout import Layout
from rltrace.sync.tensors import numpy_view, torch_view
from rltrace.sync.version import Manifest
from rltrace.trace.errors import WrongUsage

if TYPE_CHECKING:
    from torch import Tensor


class Views(Mapping[str, NDArray[Any]]):
    """The tensors of a leased version by name, tied names included: read-only arrays in shared
    memory, those of types that NumPy lacks as unsigned integers of the same width. A context
    manager: until `release()` the version stays as it is, and after it no array may be read."""

    def __init__(self, layout: Layout, lease: Lease) -> None:
        self._layout = layout
        self._lease: Lease | None = lease

    @property
    def manifest(self) -> Manifest:
        """Version, learner's step and digest."""
        return self._held().manifest

    @property
    def path(self) -> Path:
        """A safetensors file of the version, for engines that load from one."""
        return self._held().path

    def __getitem__(self, name: str) -> NDArray[Any]:
        return numpy_view(self._held().data, self._layout.by_name[name])

    def torch(self, name: str) -> Tensor:
        """As a tensor of torch's. It must not be written to: that ends the process."""
        return torch_view(self._held().data, self._layout.by_name[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.by_name)

    def __len__(self) -> int:
        return len(self._layout.by_name)

    def release(self) -> None:
        """Ends the lease; once is enough."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def __enter__(self) -> Views:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _held(self) -> Lease:
        if self._lease is None:
            raise WrongUsage("this lease has been released")
        return self._lease
