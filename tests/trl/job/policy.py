"""A model that stamps what it does and takes some time over it, as a larger one does."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from stamps import stamp
from transformers import Qwen2ForCausalLM

TOKEN_SECONDS = float(os.environ.get("TRL_JOB_TOKEN_SECONDS", "0.004"))
PASS_SECONDS = float(os.environ.get("TRL_JOB_PASS_SECONDS", "0.03"))


class Policy(Qwen2ForCausalLM):
    """Forward passes without gradients are stamped as `logprob`, those of a reference (`stamps_as`)
    as that."""

    stamps_as = "logprob"
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

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As Qwen2, with a delay where it is a pass of its own."""
        if self.generating:
            return super().forward(*args, **kwargs)
        start_ns = time.time_ns()
        found = super().forward(*args, **kwargs)
        time.sleep(PASS_SECONDS)
        if not torch.is_grad_enabled():
            stamp(self.stamps_as, start_ns, rows=found.logits.shape[0])
        return found
