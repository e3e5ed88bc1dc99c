"""A model that stamps what it does and takes some time over it, as a larger one does."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from job_stamps import stamp
from transformers import Qwen2ForCausalLM

TOKEN_SECONDS = float(os.environ.get("TRL_JOB_TOKEN_SECONDS", "0.004"))
PASS_SECONDS = float(os.environ.get("TRL_JOB_PASS_SECONDS", "0.03"))


class Policy(Qwen2ForCausalLM):
    generating = False

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers does, with a delay for each token."""
        start_ns = time.time_ns()
        self.generating = True
        try:
            found = super().generate(*args, **kwargs)
        finally:
            self.generating = False
        prompt = kwargs["input_ids"]
        time.sleep(TOKEN_SECONDS * (found.shape[1] - prompt.shape[1]))
        stamp("generate", start_ns, rows=found.shape[0])
        return found


def watch(model: torch.nn.Module, what: str) -> None:
    """Stamps the forward passes of a model that are none of training or generation."""
    begun: list[tuple[int, int]] = []

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        begun.append((time.time_ns(), len(args[0] if args else kwargs["input_ids"])))

    def after(module: Any, *_: Any) -> None:
        start_ns, rows = begun.pop()
        if getattr(module, "generating", False):
            return
        time.sleep(PASS_SECONDS)
        if not torch.is_grad_enabled():
            stamp(what, start_ns, rows=rows)

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after)
