"""A rollout server: a transformers model on a CPU, a thread for each request.

On `abort_all_requests` requests that run are handed back as they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from hangs import may_hang
from job_stamps import stamp
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.workers.rollout.replica import TokenOutput

_AT_ONCE = 16  # of requests; others wait, so that answers of a batch come one after the other

Answer = tuple[list[int], list[float], str]
"""Tokens, their log-probabilities, and why it ended."""


class Sampler:
    """Seeds of one server: draws depend on the prompt, the version and how often that prompt came,
    and nothing else. So two runs of the same job draw the same answers."""

    def __init__(self) -> None:
        self._version: Any = None
        self._seen: Counter[tuple[int, ...]] = Counter()

    def generator(self, prompt: list[int], version: Any) -> torch.Generator:
        """The source of a new request's draws."""
        if version != self._version:
            self._version = version
            self._seen.clear()
        key = tuple(prompt)
        self._seen[key] += 1
        digest = hashlib.sha256(repr((key, self._seen[key], version)).encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def draw(logits: torch.Tensor, settings: dict[str, Any], source: torch.Generator) -> int:
    """The next token, from one row of logits; temperature 0 takes the likeliest."""
    temperature = float(settings.get("temperature", 1.0) or 0.0)
    if not temperature:
        return int(logits.argmax())
    return int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=source))


class CpuServer:
    """The server, as an actor that verl's replica calls."""

    def __init__(self, path: str, config: Any) -> None:
        torch.set_num_threads(1)
        self.config = config
        self.end = AutoTokenizer.from_pretrained(path).eos_token_id
        self.model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self.parameters = dict(self.model.named_parameters())
        self.token_seconds = float(os.environ.get("VERL_CPU_TOKEN_SECONDS", "0"))
        self.version: int | None = None
        self.sampler = Sampler()
        self.threads = ThreadPoolExecutor(_AT_ONCE)
        self.running: set[asyncio.Future[Answer]] = set()
        self.resumed = asyncio.Event()
        self.resumed.set()

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_more: Any
    ) -> TokenOutput:
        start_ns = time.time_ns()
        await self.resumed.wait()
        prompt, settings = list(prompt_ids), dict(sampling_params)
        limit = int(settings.get("max_tokens") or self.config.response_length)
        room = self.config.prompt_length + self.config.response_length - len(prompt)
        source = self.sampler.generator(prompt, self.version)
        answer = asyncio.get_running_loop().run_in_executor(
            self.threads, self._decode, prompt, max(1, min(limit, room)), settings, source
        )
        self.running.add(answer)
        answer.add_done_callback(self.running.discard)
        tokens, logprobs, reason = await answer
        stamp("generate", start_ns, tokens=len(tokens), version=self.version)
        return TokenOutput(
            token_ids=tokens,
            log_probs=logprobs if settings.get("logprobs") else None,
            stop_reason=reason,
            num_preempted=0,
            extra_fields={"global_steps": self.version},
        )

    @torch.no_grad()
    def _decode(
        self, prompt: list[int], limit: int, settings: dict[str, Any], source: torch.Generator
    ) -> Answer:
        may_hang("answer")
        tokens: list[int] = []
        logprobs: list[float] = []
        while self.resumed.is_set():
            ids = torch.tensor([[*prompt, *tokens]])
            logits = self.model(input_ids=ids, use_cache=False).logits[0, -1].float()
            token = draw(logits, settings, source)
            tokens.append(token)
            logprobs.append(float(logits.log_softmax(-1)[token]))
            if token == self.end and not self.config.ignore_eos:
                return tokens, logprobs, "completed"
            if len(tokens) >= limit:
                return tokens, logprobs, "length"
            time.sleep(self.token_seconds)
        return tokens, logprobs, "aborted"

    async def load(self, weights: dict[str, torch.Tensor], version: int | None) -> None:
        """Takes the weights of a version; but for a lost one, of which it takes the name alone."""
        lost = os.environ.get("VERL_CPU_LOST_VERSION") == str(version)
        with torch.no_grad():
            for name, tensor in weights.items():
                if name in self.parameters and not lost:  # tied ones are sent twice
                    self.parameters[name].copy_(tensor)
        self.version = version

    async def abort_all_requests(self, reject_request: bool = False, **_more: Any) -> None:
        """Hands back what runs; new requests wait until `resume_generation`."""
        self.resumed.clear()
        if self.running:
            await asyncio.wait(self.running)

    async def resume_generation(self) -> None:
        self.resumed.set()

    async def _nothing(self, *_args: Any, **_more: Any) -> None: ...

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    start_profile = stop_profile = _nothing
