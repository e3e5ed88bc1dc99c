"""The weight transfer engine of a trainer that feeds vLLM.

Every worker has the version before vLLM is told to start: none loads what another could not get.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from typing_extensions import Self
from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from rltrace.hooks.span_api import Phases
from rltrace.plugins.streaming import PATIENCE_S, fresh_place
from rltrace.plugins.vllm_backend import NAME
from rltrace.sync.memory.layout import layout_of
from rltrace.sync.publisher import Publisher
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage


@dataclass
class RltraceTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc]
    """`where` to publish (default: a new name), and the `address` of a relay for other hosts."""

    backend: ClassVar[str] = NAME
    where: str = ""
    address: str = ""


class RltraceTrainerWeightTransferEngine(TrainerWeightTransferEngine):  # type: ignore[misc]
    init_info_cls = RltraceTrainerInitInfo

    def __init__(self, *, publisher: Publisher | None, where: str, **more: Any) -> None:
        super().__init__(**more)
        self._publisher, self._where = publisher, where

    @classmethod
    def trainer_init(
        cls, init_info: RltraceTrainerInitInfo, *, client: Any, source: Any = None
    ) -> Self:
        """Takes memory for `source` and tells vLLM. Errors: `RltraceError`: no room, no source."""
        if source is None:
            raise WrongUsage("what is to be published takes a WeightSource")
        publisher, where = None, ""
        if init_info.is_sender:
            where = init_info.where or fresh_place("vllm")
            metas = source.metadata()
            shapes = [(m.name, torch.empty(m.shape, dtype=m.dtype, device="meta")) for m in metas]
            publisher = Publisher.open(layout_of(shapes), where, patience_s=PATIENCE_S)
            where = init_info.address or where
            client.init_weight_transfer_engine({"where": where})
        more = {"client": client, "source": source, "is_sender": init_info.is_sender}
        return cls(publisher=publisher, where=where, **more)

    def send_weights(self) -> None:
        """Every rank calls it. Errors: `RltraceError`: another tensor, or no free slot."""
        assert self.source is not None
        with Phases() as phases:
            if self._publisher is None:
                phases.begin("sync", "take part", "gather")
                for _ in self.source:
                    pass
                return
            phases.begin("sync", "send")
            version = self._publisher.publish(iter(self.source))
            if version is None:
                raise RltraceError("no slot was free: a reader holds each", CANNOT_TELL)
            number, size = version.counter, self._publisher.layout.bytes
            phases.begin("wait", "vLLM's workers", version=number)
            self.client.init_weight_transfer_engine({"where": self._where, "version": str(version)})
            phases.begin("sync", "vLLM takes them", "load", version=number, bytes=size)
            self.client.start_weight_update()
            self.client.update_weights({"version": str(version)})
            self.client.finish_weight_update()

    def shutdown(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
