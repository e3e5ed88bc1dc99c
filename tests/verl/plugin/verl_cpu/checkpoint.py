"""Weights over gloo, for trainers that are apart from their rollout.

Rank 0 of the trainer sends, rollout workers take; the trainer's other ranks only take part in
gathering. A bucket is pickled, its length ahead of it.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from job_stamps import stamp
from verl.checkpoint_engine.base import (
    CheckpointEngine,
    CheckpointEngineRegistry,
    merge_weight_chunks,
    split_weight_chunks,
)

_PATIENCE = timedelta(seconds=300)


@CheckpointEngineRegistry.register("cpu_gloo")
class GlooCheckpointEngine(CheckpointEngine):
    def __init__(self, bucket_size: int, is_master: bool = False, **_more: Any) -> None:
        self.bucket_size = bucket_size
        self.is_master = is_master
        self.rank = -1
        self.group: Any = None
        self.store: Any = None

    def prepare(self) -> dict[str, Any] | None:
        if not self.is_master:
            return None
        address = ray.util.get_node_ip_address().strip("[]")
        with socket.socket() as free:
            free.bind((address, 0))
            return {"address": address, "port": free.getsockname()[1]}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        actors, rollouts, world = actor_wg_world_size, rollout_world_size, 1 + rollout_world_size

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            count = len(ranks)
            return {
                "rank": ranks, "world_size": [world] * count, "master": [metadata[0]] * count
            }  # fmt: skip

        senders = arguments([0] + [-1] * (actors - 1))
        return senders, arguments(list(range(1, rollouts + 1)))

    def init_process_group(self, rank: int, world_size: int, master: dict[str, Any]) -> None:
        self.rank = rank
        if rank >= 0:
            self.store = dist.TCPStore(
                master["address"],
                master["port"],
                world_size,
                is_master=rank == 0,
                timeout=_PATIENCE,
            )
            self.group = dist.ProcessGroupGloo(self.store, rank, world_size, _PATIENCE)

    def finalize(self) -> None:
        """Leaves the group; the next update has one of its own."""
        self.group = self.store = None

    async def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        await asyncio.to_thread(self.group.broadcast(tensor, 0).wait)
        return tensor

    async def _send(self, bucket: list[tuple[Any, torch.Tensor]], last: bool) -> None:
        said = bytearray(pickle.dumps((bucket, last)))
        await self._broadcast(torch.tensor([len(said)]))
        await self._broadcast(torch.frombuffer(said, dtype=torch.uint8))

    @torch.no_grad()
    async def send_weights(self, weights: Any, global_steps: int | None = None) -> dict[str, Any]:
        """Sends all tensors; what it returns is logged among the step's metrics."""
        if self.rank < 0:
            for _ in weights:
                pass
            return {}
        start_ns, total, size = time.time_ns(), 0, 0
        bucket: list[tuple[Any, torch.Tensor]] = []
        async for meta, chunk in split_weight_chunks(weights, self.bucket_size):
            if size + meta.chunk_size > self.bucket_size:
                await self._send(bucket, last=False)
                bucket, size = [], 0
            bucket.append((meta, chunk.clone()))
            size += meta.chunk_size
            total += meta.chunk_size
        await self._send(bucket, last=True)
        stamp("send", start_ns, bytes=total, version=global_steps)
        return {"checkpoint_engine/payload_mbytes": total / (1 << 20)}

    async def _chunks(self) -> AsyncIterator[tuple[Any, torch.Tensor]]:
        last = False
        while not last:
            length = int(await self._broadcast(torch.zeros(1, dtype=torch.long)))
            said = await self._broadcast(torch.zeros(length, dtype=torch.uint8))
            bucket, last = pickle.loads(said.numpy().tobytes())
            for meta, chunk in bucket:
                yield meta, chunk

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[Any]:
        """The tensors, whole, in the order in which they were sent."""
        async for named in merge_weight_chunks(self._chunks(), self.bucket_size):
            yield named
