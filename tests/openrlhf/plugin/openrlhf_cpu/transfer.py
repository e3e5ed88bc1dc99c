"""Weights: whole before they are read, gloo in NCCL's place, and layers that can take them."""

from __future__ import annotations

import os
import time
from typing import Any

from job_stamps import stamp


class Gloo:
    """What OpenRLHF asks of vLLM's PyNcclCommunicator."""

    def __init__(self, host: str, port: int, rank: int, world_size: int, _device: Any) -> None:
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        self.rank = rank
        self.received: list[Any] = []
        self.group = stateless_init_torch_distributed_process_group(
            host, port, rank, world_size, backend="gloo"
        )

    def broadcast(self, tensor: Any, src: int, stream: None = None) -> None:
        import torch.distributed

        start_ns = time.time_ns()
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        tensor = tensor.detach()
        self.group.broadcast([tensor], options).wait()
        if self.rank != src:
            self._lose(tensor)
        what = "send" if self.rank == src else "receive"
        stamp(what, start_ns, rank=self.rank, bytes=tensor.numel() * tensor.element_size())

    def _lose(self, tensor: Any) -> None:
        """The update of that number brings the engine what the one before had brought. All updates
        have their tensors in one order."""
        lost = int(os.environ.get("OPENRLHF_CPU_LOST_UPDATE", "0"))
        tensors = int(os.environ.get("OPENRLHF_CPU_TENSORS", "0"))
        if lost:
            number, place = divmod(len(self.received), tensors)
            self.received.append(tensor.clone() if number + 2 == lost else None)
            if number + 1 == lost:
                tensor.copy_(self.received[place + (number - 1) * tensors])


def over_gloo(module: Any) -> None:
    """The group in which policy and engines exchange weights."""
    module.stateless_init_process_group = Gloo


def loadable(module: Any) -> None:
    """vLLM for CPUs packs a layer's weight and drops it; then nothing could be loaded later."""
    import torch

    def keep(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    module.dispatch_cpu_unquantized_gemm = keep


def one_by_one(module: Any) -> None:
    """DeepSpeed gathers several parameters at once and waits for the last alone, which gloo need
    not finish last: then it reads, and keeps, what was in memory. Mended after 0.19.6
    (github.com/deepspeedai/DeepSpeed/pull/8539)."""
    gather = module.Init._allgather_params_coalesced

    def gather_each(self: Any, params: list[Any], *args: Any, **more: Any) -> None:
        for param in params:
            gather(self, [param], *args, **more)

    module.Init._allgather_params_coalesced = gather_each
