"""The server's place in verl: who launches it, and who pushes weights to it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import ray
import torch
from job_stamps import stamp
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from verl_cpu.server import CpuServer


def _name(replica: int) -> str:
    return f"cpu_server_{replica}_0"


class CpuReplica(RolloutReplica):
    """One server, on no device."""

    async def launch_servers(self) -> None:
        actor = ray.remote(CpuServer).options(
            name=_name(self.replica_rank), num_cpus=0, max_concurrency=self.max_concurrency
        )
        server = actor.remote(self.model_config.path, self.config)
        await server.load.remote({}, None)
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
        start_ns = time.time_ns()
        if os.environ.get("VERL_CPU_DIES_AT") == str(global_steps):
            os.kill(os.getpid(), signal.SIGKILL)
        whole = {name: one.detach().cpu() async for name, one in ensure_async_iterator(weights)}
        if self.leads:
            await ray.get_actor(_name(self.replica_rank)).load.remote(whole, global_steps)
        size = sum(tensor.nbytes for tensor in whole.values())
        stamp("weights", start_ns, bytes=size, version=global_steps, leads=self.leads)
