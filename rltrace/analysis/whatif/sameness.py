"""Which workloads are the same to a replay: levers, constants and walls ask for many that are."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from hashlib import blake2b

from rltrace.analysis.whatif.workload import Batch, Workload

NOT_PLAYED = frozenset({
    "devices", "device_kind", "one_more", "useful_tokens", "useful_share",
    "usd_per_device_hour", "measured_step_s", "steps", "step_deviation", "model_error",
    "failed_share", "parameters", "rests_on", "instead",
    "bound_stated",
})  # fmt: skip
"""Figures of a workload that no replay reads. One that is not here makes workloads differ."""

_PLAYED = tuple(
    one.name for one in fields(Workload) if one.name not in {*NOT_PLAYED, "batches", "serial_s"}
)


@dataclass(frozen=True)
class Played:
    """A workload that equals all of which a replay plays the same."""

    what: tuple[object, ...]
    load: Workload = field(compare=False, repr=False)


def played(load: Workload) -> Played:
    """The workload as what is played of it."""
    figures = (getattr(load, name) for name in _PLAYED)
    return Played((*figures, *load.serial_s.items(), *map(_content, load.batches)), load)


def _content(batch: Batch) -> tuple[bytes, tuple[int, ...]]:
    """Equal for batches of equal samples, whichever arrays hold them."""
    digest = blake2b(digest_size=16)
    for column in (batch.tokens, batch.env_s, batch.verdict_s):
        digest.update(column.tobytes())
    return digest.digest(), batch.group
