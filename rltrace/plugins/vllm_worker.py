"""The weight transfer engine in vLLM's workers: an update is checked, then loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
    layerwise_groups,
)

from rltrace.hooks.span_api import Phases, span
from rltrace.sync.memory.arena import Lease
from rltrace.sync.recording import moved
from rltrace.sync.subscriber import Subscriber
from rltrace.sync.version import Version
from rltrace.trace.errors import WrongUsage


@dataclass
class RltraceInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """`where` the trainer publishes: `shm://policy`, or the `tcp://host:port/policy` of a relay,
    which one of this host then follows; the `version` that the next update loads."""

    where: str
    version: str = ""


@dataclass
class RltraceUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    version: str


class RltraceWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    init_info_cls = RltraceInitInfo
    update_info_cls = RltraceUpdateInfo

    _subscriber: Subscriber | None = None
    _taken: Lease | None = None
    _started_ns = -1

    def init_transfer_engine(self, init_info: RltraceInitInfo) -> None:
        """Waits for policy and version, and checks it. Errors: `RltraceError`: late or damaged."""
        self._release()
        if self._subscriber is None or self._subscriber.where != init_info.where:
            self.shutdown()
            self._subscriber = Subscriber.connect(init_info.where)
        if init_info.version:
            with Phases() as phases:
                phases.begin("wait", "the trainer's weights")
                version = Version.parse(init_info.version)
                self._subscriber.wait(version)
                self._taken = self._subscriber.lease(version)

    def start_weight_update(self) -> None:
        """As vLLM's engines do for weights in a checkpoint's format."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self._started_ns = monotonic_ns()
        with span("sync", "prepare the layers", "load"):
            initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """One call an update; vLLM's own waits for the device afterwards, which may not be one."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: RltraceUpdateInfo) -> None:
        """Loads the version. Errors: `RltraceError` where it is not the one that is here."""
        here = None if self._taken is None else str(self._taken.manifest.version)
        if self._taken is None or here != update_info.version:
            said = "init_weight_transfer_engine has to be called with it first"
            raise WrongUsage(f"{update_info.version} is not here, {here} is: {said}")
        with Phases() as phases:
            loading = phases.begin("sync", "load", "load")
            manifest = self._taken.manifest
            loading.set(version=manifest.number, bytes=manifest.bytes, items=len(self._taken))
            from vllm.model_executor.model_loader.mtp_validation import (
                disable_mtp_completeness_check,
            )

            with disable_mtp_completeness_check():
                self.model.load_weights(self._tensors(self._taken))

    def finish_weight_update(self) -> None:
        """As vLLM's engines do; then the version's slot may be written again."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with span("sync", "finish the layers", "load"):
            finalize_layerwise_reload(self.model, self.model_config)
        if self._taken is not None:
            manifest = self._taken.manifest
            self._release()
            moved("sink", manifest, self._started_ns, monotonic_ns() - self._started_ns)

    def shutdown(self) -> None:
        self._release()
        if self._subscriber is not None:
            self._subscriber.close()
            self._subscriber = None

    def _tensors(self, views: Lease) -> Iterator[tuple[str, Any]]:
        """Layer by layer, as vLLM keeps what it is given of a layer until it has all of it."""
        for group in layerwise_groups(list(views)):
            for name in group:
                yield name, views.torch(name).to(self.device)

    def _release(self) -> None:
        if self._taken is not None:
            self._taken.release()
            self._taken = None
