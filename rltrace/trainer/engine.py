"""Generation: continuous batching over a KV cache, with the log-probability of every sampled token.

A sequence is started, prefilled (which yields its first token), decoded token by token together
with all others that run, and finished. As soon as sequences finish, waiting ones take their place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rltrace.trainer.model import KVCache, Transformer
from rltrace.trainer.task import END
from rltrace.trainer.trajectory import Request, Trajectory


@dataclass
class Sequence:
    """A sample in the making."""

    request: Request
    first_version: int
    last_version: int
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


@dataclass
class Running:
    """The sequences that decode together; row `i` of the cache belongs to `sequences[i]`."""

    sequences: list[Sequence]
    cache: KVCache


class Engine:
    """Samples from a policy at temperature 1; `version` is that of the weights it holds."""

    def __init__(self, model: Transformer, max_running: int, max_response: int) -> None:
        self.model = model
        self.max_running = max_running
        self.max_response = max_response
        self.version = 0

    @torch.no_grad()
    def generate(self, requests: Iterable[Request], seed: int) -> list[Trajectory]:
        """Samples every request, in the order in which they finish; same seed, same samples."""
        sampler = torch.Generator().manual_seed(seed)
        waiting = deque(requests)
        running = Running([], KVCache(self.model.shape, 0))
        done: list[Trajectory] = []
        while waiting or running.sequences:
            if running.sequences:
                self.decode(running, sampler)
            free = min(self.max_running - len(running.sequences), len(waiting))
            if free:
                self.prefill(running, [self.start(waiting.popleft()) for _ in range(free)], sampler)
            done += self.retire(running)
        return done

    def start(self, request: Request) -> Sequence:
        """A request leaves the queue."""
        return Sequence(request, first_version=self.version, last_version=self.version)

    def prefill(self, running: Running, fresh: list[Sequence], sampler: torch.Generator) -> None:
        """Reads the prompts of `fresh`, samples their first tokens and lets them join the batch."""
        lengths = torch.tensor([len(s.request.prompt) for s in fresh])
        prompts = torch.full((len(fresh), int(lengths.max())), END)
        for row, sequence in enumerate(fresh):
            prompts[row, : lengths[row]] = torch.tensor(sequence.request.prompt)
        logits, cache = self.model.prefill(prompts, lengths)
        self._sample(fresh, logits, sampler)
        running.sequences += fresh
        running.cache.join(cache)

    def decode(self, running: Running, sampler: torch.Generator) -> None:
        """Samples one more token for every running sequence."""
        last = torch.tensor([s.tokens[-1] for s in running.sequences])
        position = torch.tensor(
            [len(s.request.prompt) + len(s.tokens) - 1 for s in running.sequences]
        )
        logits = self.model.decode(last, position, running.cache)
        self._sample(running.sequences, logits, sampler)

    def retire(self, running: Running) -> list[Trajectory]:
        """Takes finished sequences out of the batch."""
        finish = [self._finish_reason(s) for s in running.sequences]
        if not any(finish):
            return []
        done = [
            self.finish(s, why) for s, why in zip(running.sequences, finish, strict=True) if why
        ]
        alive = [row for row, why in enumerate(finish) if not why]
        running.cache.keep(torch.tensor(alive, dtype=torch.long))
        running.sequences = [running.sequences[row] for row in alive]
        return done

    def finish(self, sequence: Sequence, reason: str) -> Trajectory:
        """A sequence becomes a trajectory."""
        request = sequence.request
        return Trajectory(
            id=request.id,
            group=request.group,
            batch=request.batch,
            prompt=request.prompt,
            tokens=np.array(sequence.tokens, dtype=np.int64),
            log_probs=np.array(sequence.log_probs, dtype=np.float32),
            first_version=sequence.first_version,
            last_version=sequence.last_version,
            finish=reason,
        )

    def _finish_reason(self, sequence: Sequence) -> str | None:
        if sequence.tokens[-1] == END:
            return "stop"
        return "length" if len(sequence.tokens) == self.max_response else None

    def _sample(self, rows: list[Sequence], logits: Tensor, sampler: torch.Generator) -> None:
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        tokens = torch.multinomial(log_probs.exp(), 1, generator=sampler)
        chosen = log_probs.gather(1, tokens)
        for row, token, log_prob in zip(
            rows, tokens[:, 0].tolist(), chosen[:, 0].tolist(), strict=True
        ):
            row.tokens.append(token)
            row.log_probs.append(log_prob)
            row.last_version = self.version
