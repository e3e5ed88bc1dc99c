"""A GRPO loop as people write it in plain torch, on a model of transformers made on the spot.

    python -m benchmarks.gpu.grpo --steps 8 [--cpu] [--stamps FILE] [--paced FD] [--bare]

In a step: responses are generated with a KV cache, judged by a function on the host, given
log-probabilities by the reference model and by the policy, trained on in micro-batches, and the new
weights are copied into the memory of a second process, on the same device. Nothing but the sampled
tokens, the loss and the end of that copy is waited for, so the host runs ahead of the device.

`--stamps` writes what each stage took by the device's own clock: CUDA events of the job's own,
which are looked at when the step is over; on the CPU, the host's clock. `--paced` waits for a line
on stdin before each step but the first, and writes a line for each to a descriptor. `--bare` leaves
rltrace out. On the CPU a stand-in takes the place of the model, so that transformers is not needed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

import torch
import torch.multiprocessing as mp
from torch import Tensor

STAGES = ("rollout", "reward", "reference", "logprob", "train", "sync")


@dataclass(frozen=True)
class Size:
    """A model of Qwen2's kind and what it is trained on."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    prompts: int
    group: int
    prompt_tokens: int
    new_tokens: int
    micro: int


SIZES = {
    # Qwen2.5-0.5B's shape: 494 million parameters.
    "0.5B": Size(896, 24, 14, 2, 4864, 151_936, 8, 8, 128, 48, 16),
    # And for the cost of tracing, where many steps count: less of everything but the layers' kind.
    "0.1B": Size(768, 12, 12, 2, 2048, 32_000, 8, 8, 64, 24, 32),
    "tiny": Size(32, 2, 4, 2, 64, 256, 2, 4, 8, 6, 4),
}


class Clock:
    """Stamps of a step's stages. Each `(stage, start, end)` in seconds since the clock began."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[tuple[str, Any, Any]] = []
        if self._on_gpu:
            torch.cuda.synchronize()
        self._zero = self._now()
        self.zero_ns = time.monotonic_ns()
        if self._on_gpu:
            torch.cuda.synchronize()

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.monotonic_ns()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Stamps what is queued inside."""
        begun: Any = time.monotonic_ns() if name == "reward" else self._now()
        yield
        ended: Any = time.monotonic_ns() if name == "reward" else self._now()
        self._marks.append((name, begun, ended))

    def taken(self) -> list[tuple[str, float, float]]:
        """The stamps since the last call; the device has come to the last of them."""
        marks, self._marks = self._marks, []
        return [(name, self._seconds(a), self._seconds(b)) for name, a, b in marks]

    def _seconds(self, mark: Any) -> float:
        if isinstance(mark, int):
            return (mark - self.zero_ns) / 1e9
        elapsed: float = self._zero.elapsed_time(mark)
        return elapsed / 1e3


@dataclass
class Found:
    """What the stand-in gives, under the names of transformers."""

    logits: Tensor
    past_key_values: Tensor


class StandIn(torch.nn.Module):
    """Not a language model, but called as one: a token's logits are those of the sum of all tokens
    up to it, which is also its cache."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self._embedding = torch.nn.Embedding(size.vocabulary, size.hidden)
        self._head = torch.nn.Linear(size.hidden, size.vocabulary)

    def forward(self, tokens: Tensor, past_key_values: Any = 0, **_: Any) -> Found:
        """Shapes: (samples, tokens) to (samples, tokens, vocabulary)."""
        sums = self._embedding(tokens).cumsum(1) + past_key_values
        return Found(self._head(sums), sums[:, -1:])


def build(size: Size, device: torch.device, seed: int) -> Any:
    """A causal language model with random weights, in bfloat16 on a GPU."""
    if device.type == "cpu":
        torch.manual_seed(seed)
        return StandIn(size)
    from transformers import Qwen2Config, Qwen2ForCausalLM  # type: ignore[import-not-found]

    torch.manual_seed(seed)
    config = Qwen2Config(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        intermediate_size=size.intermediate,
        vocab_size=size.vocabulary,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        return Qwen2ForCausalLM(config).to(torch.bfloat16)


@torch.no_grad()
def generate(model: Any, prompts: Tensor, new_tokens: int) -> Tensor:
    """Samples a response of `new_tokens` to each prompt: shape (samples, prompt + new)."""
    found = model(prompts, use_cache=True, logits_to_keep=1)
    pieces, cache = [prompts], found.past_key_values
    for _ in range(new_tokens):
        drawn = torch.multinomial(found.logits[:, -1].float().softmax(-1), 1)
        pieces.append(drawn)
        found = model(drawn, past_key_values=cache, use_cache=True)
        cache = found.past_key_values
    return torch.cat(pieces, 1)


def judged(responses: list[list[int]]) -> list[float]:
    """How many of the tokens are even, as a share: work of the host's."""
    return [sum(token % 2 == 0 for token in response) / len(response) for response in responses]


def log_probabilities(model: Any, tokens: Tensor, prompt_tokens: int, micro: int) -> Tensor:
    """Of the response's tokens: shape (samples, new)."""
    found = []
    for part in tokens.split(micro):  # type: ignore[no-untyped-call]
        logits = model(part[:, :-1]).logits[:, prompt_tokens - 1 :].float()
        chosen = part[:, prompt_tokens:, None]
        found.append(logits.log_softmax(-1).gather(-1, chosen).squeeze(-1))
    return torch.cat(found)


def hold_weights(asked: Any) -> None:
    """The second process: it holds the weights that the learner writes into its memory."""
    held = asked.recv()
    while asked.recv() is not None:
        asked.send(len(held))


class Loop:
    """The trainer, its reference model and the process that its weights go to."""

    def __init__(self, size: Size, device: torch.device, seed: int, tracer: Any) -> None:
        self._size, self._device, self._tracer = size, device, tracer
        self.policy = build(size, device, seed)
        self._reference = build(size, device, seed)
        self._optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=1e-5, fused=device.type == "cuda"
        )
        self.clock = Clock(device)
        self.parameters = sum(parameter.numel() for parameter in self.policy.parameters())
        self._weights = [parameter.detach() for parameter in self.policy.parameters()]
        self._held = [torch.empty_like(weight) for weight in self._weights]
        context = mp.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._holder = context.Process(target=hold_weights, args=(other,), daemon=True)
        self._holder.start()
        self._pipe.send(self._held)

    def step(self, number: int) -> float:
        """One step; its loss."""
        size, tracer, clock = self._size, self._tracer, self.clock
        samples, new = size.prompts * size.group, size.new_tokens
        generator = torch.Generator().manual_seed(1000 + number)
        shape = (size.prompts, size.prompt_tokens)
        prompts = torch.randint(0, size.vocabulary, shape, generator=generator)
        prompts = prompts.repeat_interleave(size.group, 0).to(self._device)
        names = range(number * samples, (number + 1) * samples)  # ids of the samples
        with tracer.span("rollout", tokens=samples * new, items=samples), clock.stage("rollout"):
            begun = [tracer.trajectory(n, group=int(n) // size.group) for n in names]
            tokens = generate(self.policy, prompts, new)
            for sample in begun:
                sample.finish("length", response_tokens=new)
            responses = tokens[:, size.prompt_tokens :].tolist()
        with tracer.span("reward"), clock.stage("reward"):
            rewards = torch.tensor(judged(responses)).view(size.prompts, size.group)
        advantages = (rewards - rewards.mean(1, keepdim=True)).flatten()[:, None].to(self._device)
        given = size.prompt_tokens, size.micro
        with tracer.span("reference"), clock.stage("reference"), torch.no_grad():
            reference = log_probabilities(self._reference, tokens, *given)
        with tracer.span("logprob"), clock.stage("logprob"), torch.no_grad():
            old = log_probabilities(self.policy, tokens, *given)
        with tracer.span("train", tokens=samples * new), clock.stage("train"):
            total = torch.zeros((), device=self._device)
            parts = range(0, samples, size.micro)
            for begin in parts:
                part = slice(begin, begin + size.micro)
                now = log_probabilities(self.policy, tokens[part], *given)
                ratio = (now - old[part]).exp()
                gap = reference[part] - now
                penalty = gap.exp() - gap - 1
                loss = (0.01 * penalty - ratio * advantages[part]).mean() / len(parts)
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        for name in names:
            tracer.use(name, "trained", version=number, tokens=new)
        with tracer.weight_update(number + 1), clock.stage("sync"):
            torch._foreach_copy_(self._held, self._weights)
            loss_value = float(total)  # waits for the device
            self._pipe.send(number)
            self._pipe.recv()
        return loss_value

    def close(self) -> None:
        """Lets the second process end."""
        self._pipe.send(None)
        self._holder.join(10)


class Bare:
    """Stands for rltrace where it is left out."""

    @staticmethod
    @contextlib.contextmanager
    def span(*_: Any, **__: Any) -> Iterator[None]:
        """Nothing."""
        yield

    weight_update = step = span

    @staticmethod
    def use(*_: Any, **__: Any) -> None:
        """Nothing."""

    @staticmethod
    def trajectory(*_: Any, **__: Any) -> Any:
        """Nothing."""
        return Bare

    finish = use


def run(arguments: argparse.Namespace, tracer: Any, paced: TextIO | None) -> None:
    """All steps."""
    device = torch.device("cpu" if arguments.cpu else "cuda")
    size = SIZES["tiny" if arguments.cpu else arguments.size]
    loop = Loop(size, device, arguments.seed, tracer)
    stamps = open(arguments.stamps, "w") if arguments.stamps else None  # noqa: SIM115
    for number in range(arguments.steps):
        begun = time.perf_counter()
        with tracer.step(number):
            loss = loop.step(number)
        told: dict[str, Any] = {"step": number, "seconds": time.perf_counter() - begun}
        told |= {"loss": loss, "tokens": size.prompts * size.group * size.new_tokens}
        taken = loop.clock.taken()
        if stamps:
            told |= {"stages": taken, "zero_ns": loop.clock.zero_ns}
            print(json.dumps({**told, "parameters": loop.parameters}), file=stamps, flush=True)
        if paced:
            print(json.dumps(told), file=paced, flush=True)
            sys.stdin.readline()
    loop.close()


def main() -> None:
    """Trains as told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", choices=sorted(SIZES), default="0.5B")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--stamps")
    parser.add_argument("--paced", type=int)
    parser.add_argument("--host-ends", action="store_true", help="no events behind spans")
    arguments = parser.parse_args()
    tracer: Any = Bare
    if not arguments.bare:
        import rltrace

        tracer = rltrace
        if arguments.host_ends:
            from rltrace.testing.inside.hooks import device_completion as device_ends

            device_ends._given_up.append(True)
    if arguments.cpu:
        torch.set_num_threads(1)
    paced = None if arguments.paced is None else os.fdopen(arguments.paced, "w", buffering=1)
    run(arguments, tracer, paced)


if __name__ == "__main__":
    main()
