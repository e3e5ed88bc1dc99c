"""A model's weights packed into one buffer of bytes, and unpacked."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rltrace.sync.memory.copying import Workers
from rltrace.sync.memory.layout import Layout
from rltrace.sync.slot_filling import Filler
from rltrace.sync.weight_loading import Applier
from rltrace.trace.errors import RltraceError


def pack(state: Mapping[str, Tensor], layout: Layout) -> NDArray[np.uint8]:
    """Copies the tensors into a fresh buffer. Errors: those of `Filler.fill`."""
    buffer = np.empty(layout.bytes, np.uint8)
    Filler(layout, hashing=False).fill(state, buffer, np.empty(0, np.uint64), Workers(1))
    return buffer


def unpack(buffer: NDArray[np.uint8], layout: Layout, state: Mapping[str, Tensor]) -> None:
    """Copies a buffer into tensors of its layout. Errors: `RltraceError`: others; none touched."""
    if len(buffer) != layout.bytes:
        raise RltraceError(f"{len(buffer)} bytes of weights, but {layout.bytes} are needed")
    applier = Applier(layout, Workers(1))
    plan = applier.plan(state)
    applier.check_equal(buffer, plan)
    applier.apply(buffer, None, plan)
