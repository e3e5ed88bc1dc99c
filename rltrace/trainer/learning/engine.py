"""Generation by continuous batching over a KV cache, with log-probabilities."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rltrace.trainer.learning.model import KVCache, Transformer
from rltrace.trainer.task import END
from rltrace.trainer.trajectory import Request, Trajectory

_TOLD = ("first_version", "last_version", "finish", "turns", "env_seconds", "preemptions")
"""What a trajectory has of its sequence, as it is."""


@dataclass(eq=False)
class Sequence:
    """A sample in the making. Its random numbers are its own, whatever it is batched with."""

    request: Request
    sampler: random.Random
    tokens: list[int] = field(default_factory=list)
    generated: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    first_version: int = -1
    last_version: int = -1
    finish: str = ""  # why it has ended
    deadline: float = float("inf")  # on the clock of `time.monotonic`, seconds
    turns: int = 1
    env_seconds: float = 0.0
    preemptions: int = 0
    turn: asyncio.Future[None] | None = None  # done when the engine gives it back
    call: asyncio.Future[list[int]] | None = None  # of a tool, while it is at work or after

    def observe(self, answer: list[int]) -> None:
        self.tokens += answer
        self.generated += [False] * len(answer)
        self.turns += 1


class Engine:
    """Samples at temperature 1; `version` is that of its weights. A turn ends with `END`, with
    `call_token`, or at `max_response` tokens. A decode step takes at least `decode_floor` s."""

    def __init__(
        self,
        model: Transformer,
        max_running: int,
        max_response: int,
        call_token: int | None = None,
        timeout: float = 0.0,
        decode_floor: float = 0.0,
    ) -> None:
        self.model, self.max_running, self.max_response = model, max_running, max_response
        self.call_token, self.decode_floor = call_token, decode_floor
        self.timeout = timeout or float("inf")
        self.version = 0
        self.open: dict[str, Sequence] = {}
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # row `i` of the cache belongs to `running[i]`
        self.cache = KVCache(model.shape, 0)
        self.draining = False
        self.loop: asyncio.Task[None] | None = None

    def submit(self, request: Request, seed: str) -> Sequence:
        """A sequence for a request; `extend` generates it, `finish` ends it."""
        sequence = Sequence(request, random.Random(f"{seed}/{request.id}"))
        self.open[request.id] = sequence
        return sequence

    async def extend(self, sequence: Sequence) -> None:
        """Generates the sequence's next turn; it has then ended or waits for a tool's answer."""
        sequence.turn = asyncio.get_running_loop().create_future()
        self.waiting.append(sequence)
        if self.loop is None or self.loop.done():
            self.loop = asyncio.create_task(self._run())
        await sequence.turn

    def finish(self, sequence: Sequence) -> Trajectory:
        del self.open[sequence.request.id]
        told = {name: getattr(sequence, name) for name in _TOLD}
        return Trajectory(
            **vars(sequence.request),
            **told,
            tokens=np.array(sequence.tokens, dtype=np.int64),
            generated=np.array(sequence.generated, dtype=np.bool_),
            log_probs=np.array(sequence.log_probs, dtype=np.float32),
        )

    def abort(self, ids: Collection[str]) -> None:
        for sequence in [self.open[id] for id in self.open.keys() & ids]:
            sequence.finish = sequence.finish or "abort"
            if sequence.call is not None:
                sequence.call.cancel()

    def renew(self, version: int) -> None:
        """The weights have changed: what runs is read anew, before all that waits."""
        self.version = version
        self._retire()  # what has just ended must not be read anew
        for sequence in self.running:
            sequence.preemptions += 1
        self.waiting.extendleft(reversed(self.running))
        self.running, self.cache = [], KVCache(self.model.shape, 0)

    async def drain(self) -> None:
        """Waits until nothing runs, and lets nothing begin meanwhile."""
        while self.running:
            self.draining = True  # each time: another drain that was waited for has ended
            await asyncio.wait([s.turn for s in self.running if s.turn is not None])
        self.draining = False

    async def _run(self) -> None:
        try:
            while self.waiting or self.running:
                await self.iterate()
                self._retire()
        except Exception as error:  # those who wait must learn of it
            for sequence in self.open.values():
                if sequence.turn is not None and not sequence.turn.done():
                    sequence.turn.set_exception(error)
            self.running, self.waiting, self.cache = [], deque(), KVCache(self.model.shape, 0)

    async def iterate(self) -> None:
        """One token for each sequence of the batch, in no less time than the device would take."""
        started = time.perf_counter()
        self._advance()
        await asyncio.sleep(max(0.0, self.decode_floor + started - time.perf_counter()))

    @torch.no_grad()
    def _advance(self) -> None:
        now = time.monotonic()
        for sequence in (*self.running, *self.waiting):
            if now > sequence.deadline:
                sequence.finish = sequence.finish or "timeout"
        for sequence in [s for s in self.waiting if s.finish]:
            self.waiting.remove(sequence)
            self._release(sequence)
        self._retire()
        if self.running:
            self.decode()
        free = 0 if self.draining else self.max_running - len(self.running)
        fresh = [self.waiting.popleft() for _ in range(min(free, len(self.waiting)))]
        for sequence in fresh:
            if sequence.first_version < 0:
                sequence.first_version = sequence.last_version = self.version
                sequence.deadline = time.monotonic() + self.timeout
        if fresh:
            self.prefill(fresh)

    def prefill(self, fresh: list[Sequence]) -> None:
        """Reads all that `fresh` have, samples their next tokens and lets them join the batch."""
        contexts = [torch.tensor([*s.request.prompt, *s.tokens]) for s in fresh]
        lengths = torch.tensor([len(c) for c in contexts])
        padded = pad_sequence(contexts, batch_first=True, padding_value=END)
        logits, cache = self.model.prefill(padded, lengths)
        self._sample(fresh, logits)
        self.running += fresh
        self.cache.join(cache)

    def decode(self) -> None:
        last = torch.tensor([s.tokens[-1] for s in self.running])
        position = torch.tensor([len(s.request.prompt) + len(s.tokens) - 1 for s in self.running])
        self._sample(self.running, self.model.decode(last, position, self.cache))

    def _sample(self, rows: list[Sequence], logits: Tensor) -> None:
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        cumulative = log_probs.exp().cumsum(dim=-1)
        draws = torch.tensor([[s.sampler.random()] for s in rows]) * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, draws, right=True).clamp(max=logits.shape[1] - 1)
        chosen = log_probs.gather(1, tokens)[:, 0].tolist()
        for sequence, token, log_prob in zip(rows, tokens[:, 0].tolist(), chosen, strict=True):
            sequence.tokens.append(token)
            sequence.generated.append(True)
            sequence.log_probs.append(log_prob)
            sequence.last_version = self.version
            if not sequence.finish:
                if token == END:
                    sequence.finish = "stop"
                elif len(sequence.tokens) >= self.max_response:
                    sequence.finish = "length"

    def _retire(self) -> None:
        over = [bool(s.finish) or s.tokens[-1] == self.call_token for s in self.running]
        if not any(over):
            return
        for sequence, is_over in zip(self.running, over, strict=True):
            if is_over:
                self._release(sequence)
        alive = [row for row, is_over in enumerate(over) if not is_over]
        self.cache.keep(torch.tensor(alive, dtype=torch.long))
        self.running = [self.running[row] for row in alive]

    def _release(self, sequence: Sequence) -> None:
        if sequence.turn is not None and not sequence.turn.done():
            sequence.turn.set_result(None)
