"""The server's place in verl: who launches it, and who pushes weights to it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from verl_cpu.dying import die
from verl_cpu.server import CpuServer
from verl_cpu.stamps import stamp


def _name(replica: int) -> str:
    return f"cpu_server_{replica}_0"


class CpuReplica(RolloutReplica):
    """One server, on no device."""

    async def launch_servers(self) -> None:
        """Starts it; verl's interface."""
        actor = ray.remote(CpuServer).options(
            name=_name(self.replica_rank), num_cpus=0, max_concurrency=self.max_concurrency
        )
        server = actor.remote(self.model_config.path, self.config)
        await server.set_version.remote(None)
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"cpu:{self.replica_rank}"

    def rollout_worker_use_gpu(self) -> bool:
        """Workers beside the server hold no device."""
        return False


class CpuRollout(BaseRollout):
    """Lives in a training (or checkpoint engine's) worker and pushes weights to the server."""

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_more: Any
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        world = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        rank = int(os.environ["RANK"])
        self.replica_rank = rank // world if replica_rank == -1 else replica_rank
        self.leads = rank % world == 0

    async def resume(self, tags: Any) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """There is no memory of a device to release."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]] | AsyncIterator[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_more: Any,
    ) -> None:
        """Sends weights in buckets; verl's interface."""
        start_ns, total = time.time_ns(), 0
        die("trainer", global_steps)
        limit = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        bucket: dict[str, torch.Tensor] = {}
        size = 0
        async for name, tensor in ensure_async_iterator(weights):
            if size + tensor.nbytes > limit:
                await self._load(bucket)
                bucket, size = {}, 0
            bucket[name] = tensor.detach().cpu()
            size += tensor.nbytes
            total += tensor.nbytes
        await self._load(bucket)
        if self.leads:
            await self._server().set_version.remote(global_steps)
        stamp("weights", start_ns, bytes=total, version=global_steps, leads=self.leads)

    async def _load(self, bucket: dict[str, torch.Tensor]) -> None:
        if bucket and self.leads:
            await self._server().load.remote(bucket)

    def _server(self) -> Any:
        return ray.get_actor(_name(self.replica_rank))
