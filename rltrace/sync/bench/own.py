"""rltrace.sync itself, as it is used: slots in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rltrace.sync.bench.models import Weights
from rltrace.sync.bench.ways import Receive, Sender, Setting, Way
from rltrace.sync.dtypes import torch_name
from rltrace.sync.layout import layout_of
from rltrace.sync.publisher import Publisher
from rltrace.sync.subscriber import Subscriber


@dataclass(frozen=True)
class Slots(Way):
    """With digests every block is checked as it is copied."""

    digests: bool = True

    @property
    def name(self) -> str:
        return "rltrace.sync" if self.digests else "rltrace.sync, no digests"

    def copies(self, receivers: int) -> int:
        """Two slots."""
        return 2

    def sender(self, setting: Setting) -> Sender:
        publisher = Publisher.open(
            layout_of(_shapes(setting)),
            _place(setting),
            spare=0,
            hashing=self.digests,
            patience_s=1.0,
        )
        return Sender(lambda number, w: publisher.publish(w, number), publisher.close)

    def receiver(self, setting: Setting, number: int, weights: Weights) -> Receive:
        subscriber = Subscriber.connect(_place(setting), threads=setting.threads)

        def receive(number: Any) -> None:
            subscriber.pull_into(weights, at_least=int(number), verify=self.digests)

        return receive


def _shapes(setting: Setting) -> Weights:
    """Tensors without memory: only their shapes and types are looked at."""
    import torch

    return {
        name: torch.empty(shape, dtype=getattr(torch, torch_name(code)), device="meta")
        for name, (code, shape) in setting.model.tensors.items()
    }


def _place(setting: Setting) -> str:
    return f"shm://{setting.folder}/policy"
