"""TRL's asynchronous GRPO without a GPU: its real trainer and its real rollout process, against a
small server, with what only CUDA has in the place of TRL's."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import rewards
import torch
from server import Server, serve
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoTokenizer
from trl.experimental.async_grpo import (
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    async_grpo_trainer,
    async_rollout_worker,
    packing,
)


class Attention:
    """FlashAttention's function for sequences that are packed into one."""

    @staticmethod
    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *_: Any, softmax_scale: Any = None, **__: Any
    ) -> Any:
        """Each sequence for itself; a token sees those before it."""
        found = []
        for first, last in pairwise(cu_q.tolist()):
            own = [x[first:last].transpose(0, 1).unsqueeze(0) for x in (q, k, v)]
            mixed = scaled_dot_product_attention(
                *own, is_causal=True, scale=softmax_scale, enable_gqa=True
            )
            found.append(mixed[0].transpose(0, 1))
        return torch.cat(found)


class Transfer:
    """TRL's protocol for a way of one's own to move weights: a call."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def init_weight_transfer(self) -> None:
        """Nothing to set up."""

    def destroy(self) -> None:
        """Nothing to give back."""

    def pause(self) -> None:
        self.server.running.clear()

    def resume(self) -> None:
        self.server.running.set()

    def send_weights(self, iterator: Any) -> None:
        self.server.load(iterator)


def asynchronous(
    model: str, out: str, options: dict[str, Any], common: dict[str, Any], prompts: Any
) -> Any:
    packing._flash_attn = lambda: Attention
    async_grpo_trainer.get_peak_flops_per_device = lambda *_, **__: None
    async_rollout_worker.is_vllm_available = lambda *_, **__: True
    server = Server(model)
    settings = {
        **common,
        "output_dir": out,
        "num_generations": 4,
        "max_completion_length": 12,
        "token_budget": 0,
        "max_inflight_tasks": 16,
        "queue_maxsize": 64,
        "max_staleness": 2,
        "weight_sync_steps": 1,
        "dtype": "float32",
        "vllm_server_base_url": serve(server),
        **options,
    }
    return AsyncGRPOTrainer(
        model=model,
        reward_funcs=[rewards.identity, rewards.some],
        args=AsyncGRPOConfig(**settings),
        train_dataset=prompts,
        processing_class=AutoTokenizer.from_pretrained(model),
        weight_transfer=Transfer(server),
    )
