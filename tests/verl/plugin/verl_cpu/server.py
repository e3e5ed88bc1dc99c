"""A rollout server: a transformers model on a CPU that decodes waves of requests.

A wave begins with the requests that are there; each is answered as soon as it ends, so long
answers make a tail. On `abort_all_requests` those that run are handed back as they are.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.workers.rollout.replica import TokenOutput

from verl_cpu.dying import die
from verl_cpu.sampling import Sampler, draw
from verl_cpu.stamps import stamp


class Request:
    """One request, until it is answered."""

    def __init__(self, prompt: list[int], limit: int, settings: dict[str, Any]) -> None:
        self.prompt = prompt
        self.limit = limit
        self.settings = settings
        self.answered = asyncio.get_running_loop().create_future()
        self.source = torch.Generator()
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.reason: str | None = None


class CpuServer:
    """The server, as an actor that verl's replica calls."""

    def __init__(self, path: str, config: Any) -> None:
        torch.set_num_threads(1)
        self.config = config
        tokenizer = AutoTokenizer.from_pretrained(path)
        self.end, self.padding = tokenizer.eos_token_id, tokenizer.pad_token_id
        self.model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self.parameters = dict(self.model.named_parameters())
        self.token_seconds = float(os.environ.get("VERL_CPU_TOKEN_SECONDS", "0"))
        self.wave = int(os.environ.get("VERL_CPU_WAVE", "1"))
        self.version: int | None = None
        self.sampler = Sampler()
        self.paused = False
        self.waiting: list[Request] = []
        self.came = asyncio.Event()
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.serving: asyncio.Task[None] | None = None
        self.answers = 0

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_more: Any
    ) -> TokenOutput:
        """Answers a request; verl's interface of rollout servers."""
        start_ns = time.time_ns()
        if self.serving is None:
            self.serving = asyncio.get_running_loop().create_task(self._serve())
        await self.resumed.wait()
        settings = dict(sampling_params)
        limit = int(settings.get("max_tokens") or self.config.response_length)
        room = self.config.prompt_length + self.config.response_length - len(prompt_ids)
        request = Request(list(prompt_ids), max(1, min(limit, room)), settings)
        self.waiting.append(request)
        self.came.set()
        await request.answered
        self.answers += 1
        die("server", self.answers)
        stamp("generate", start_ns, tokens=len(request.tokens), version=self.version)
        return TokenOutput(
            token_ids=request.tokens,
            log_probs=request.logprobs if settings.get("logprobs") else None,
            stop_reason=request.reason,
            num_preempted=0,
            extra_fields={"global_steps": self.version},
        )

    async def _serve(self) -> None:
        while True:
            while len(self.waiting) < self.wave:
                self.came.clear()
                await self.came.wait()
            await asyncio.sleep(0.005)  # the others of a batch are about to arrive
            live, self.waiting = self.waiting, []
            live.sort(key=lambda request: request.prompt)
            for request in live:
                request.source = self.sampler.generator(request.prompt, self.version)
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(None, self._decode, live, loop)
            except Exception as error:
                for request in live:
                    if not request.answered.done():
                        request.answered.set_exception(error)

    @torch.no_grad()
    def _decode(self, wave: list[Request], loop: asyncio.AbstractEventLoop) -> None:
        width = max(len(request.prompt) for request in wave)
        tokens = torch.full((len(wave), width), self.padding)
        mask = torch.zeros_like(tokens)
        for row, request in enumerate(wave):
            tokens[row, width - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, width - len(request.prompt) :] = 1
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache, live = None, list(enumerate(wave))
        while live:
            if self.paused:
                for _, request in live:
                    self._answer(request, "aborted", loop)
                return
            out = self.model(
                input_ids=tokens, attention_mask=mask, position_ids=positions,
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
            cache = out.past_key_values
            tokens = torch.full((len(wave), 1), self.padding)
            for row, request in live:
                tokens[row] = self._step(request, out.logits[row, -1].float(), loop)
            live = [(row, request) for row, request in live if request.reason is None]
            mask = torch.cat([mask, torch.ones(len(wave), 1, dtype=mask.dtype)], 1)
            positions = positions[:, -1:] + 1
            time.sleep(self.token_seconds)

    def _step(self, request: Request, logits: torch.Tensor, loop: asyncio.AbstractEventLoop) -> int:
        token = draw(logits, request.settings, request.source)
        request.tokens.append(token)
        request.logprobs.append(float(logits.log_softmax(-1)[token]))
        if token == self.end and not self.config.ignore_eos:
            self._answer(request, "completed", loop)
        elif len(request.tokens) >= request.limit:
            self._answer(request, "length", loop)
        return token

    def _answer(self, request: Request, reason: str, loop: asyncio.AbstractEventLoop) -> None:
        request.reason = reason
        loop.call_soon_threadsafe(request.answered.set_result, None)

    async def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Takes a part of new weights."""
        with torch.no_grad():
            for name, tensor in weights.items():
                if name in self.parameters:  # tied ones are sent twice
                    self.parameters[name].copy_(tensor)

    async def set_version(self, version: int | None) -> None:
        """The weights are whole, and of this version."""
        self.version = version

    async def abort_all_requests(self, reject_request: bool = False, **_more: Any) -> None:
        """Hands back what runs and what waits; new requests wait until `resume_generation`."""
        self.paused = True
        self.resumed.clear()
        loop = asyncio.get_running_loop()
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            self._answer(request, "aborted", loop)

    async def resume_generation(self) -> None:
        """Goes on taking requests."""
        self.paused = False
        self.resumed.set()

    async def _nothing(self, *_args: Any, **_more: Any) -> None: ...

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    start_profile = stop_profile = _nothing
