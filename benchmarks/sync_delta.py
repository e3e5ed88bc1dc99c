"""What a version costs as changes of the one before: bytes beside the entropy bound, and rates.

    python -m benchmarks.sync_delta [--steps 1000] [--megabytes 200] [--json]

A small transformer learns the Python library's text by heart, then goes on with AdamW on fp32
master weights at RL learning rates: with the same loss, and by policy gradient (GRPO's). Every
step's bf16 weights are encoded against the step before, decoded and compared bit for bit. The bound
is that of places drawn independently (binary entropy) and of the changes' own order-0 entropy.

Rates are of CPU time of one thread, over bytes of weights, on noise of which as many elements were
moved by one bf16 step as really moved; numpy's twin of the compiled kernel is beside it. All of it
takes a quarter of an hour, most of which is training.
"""

from __future__ import annotations

import glob
import math
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measuring import Check, Result, spread
from rltrace.testing.inside.sync import (
    BLOCK_BYTES,
    Bytes,
    Decoder,
    Encoded,
    Encoder,
    Encoding,
    block_count,
    block_range,
    compiled,
    digests_of,
)
from rltrace.testing.inside.sync import block_digests_digest as blocks_digest
from rltrace.testing.inside.sync import changed_elements as changes

WIDTH, DEPTH, HEADS, CONTEXT = 256, 6, 4, 128
WARM_STEPS = 25  # Adam's first steps are larger: stated apart
ROUNDS = 5
FAST_GB_PER_S = 5.0


class Block(nn.Module):
    """One layer of a Llama-like transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, length, width) to the same."""
        batch, length, _ = x.shape
        heads = self.qkv(self.before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """Bytes in, logits of the next byte out: 5.2 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, length) of bytes to (batch, length, 256)."""
        at = torch.arange(x.shape[1])
        logits: Tensor = self.head(self.norm(self.blocks(self.bytes(x) + self.places(at))))
        return logits


def library_text() -> Tensor:
    """The standard library's own modules."""
    files = sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/*.py"))[:150]
    text = b"".join(Path(file).read_bytes() for file in files)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def batch(text: Tensor, size: int, length: int = CONTEXT) -> Tensor:
    """Pieces of the text, shape (size, length + 1)."""
    starts = torch.randint(0, len(text) - length - 1, (size,)).tolist()
    return torch.stack([text[start : start + length + 1] for start in starts])


def language_loss(model: Model, text: Tensor) -> Tensor:
    """Cross entropy of the next byte."""
    pieces = batch(text, 8)
    return functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def policy_loss(model: Model, text: Tensor) -> Tensor:
    """GRPO's: 2 prompts of 8 samples of 12 bytes, rewarded for lower-case letters."""
    prompts, group, new = 2, 8, 12
    context = batch(text, prompts, 52)[:, :-1].repeat_interleave(group, 0)
    with torch.no_grad():
        for _ in range(new):
            chances = functional.softmax(model(context)[:, -1], -1)
            context = torch.cat([context, torch.multinomial(chances, 1)], 1)
    said = context[:, -new:]
    reward = ((said >= 97) & (said <= 122)).float().mean(1).view(prompts, group)
    deviation = reward - reward.mean(1, keepdim=True)
    advantage = (deviation / (reward.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    logits = functional.log_softmax(model(context[:, :-1])[:, -new:], -1)
    return -(advantage * logits.gather(-1, said[..., None])[..., 0]).mean()


LOSSES = {"policy gradient": policy_loss, "language": language_loss}


def pretrained(text: Tensor, steps: int) -> Model:
    """A model that has learnt something, so that its weights are of real sizes."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(steps):
        rate = 1e-3 * min(1, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = rate
        _step(model, optimizer, language_loss(model, text))
    return model


def _step(model: Model, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def cast(model: Model) -> Bytes:
    """The weights as they are published: bf16, flat."""
    flat = torch.cat([p.detach().to(torch.bfloat16).reshape(-1) for p in model.parameters()])
    values: Bytes = flat.view(torch.uint8).numpy()
    return values


def bound_bytes(old: Bytes, new: Bytes) -> tuple[float, float]:
    """The entropy bound in bytes, and the share of elements that changed."""
    before, after = old.view(np.int16).astype(np.int32), new.view(np.int16).astype(np.int32)
    steps = (after - before)[before != after]
    share = len(steps) / len(before)
    if not 0 < share < 1:
        return 0.0, share
    place = -(share * math.log2(share) + (1 - share) * math.log2(1 - share))
    odds = np.unique(steps, return_counts=True)[1] / len(steps)
    return (len(before) * place - len(steps) * float(odds @ np.log2(odds))) / 8, share


def encode(old: Bytes, new: Bytes, width: int = 2) -> list[Encoded]:
    """A version as changes of another one of the same length, block by block."""
    encoder = Encoder()
    parts = (slice(*block_range(block, len(new))) for block in range(block_count(len(new))))
    return [encoder.encode(old[part], new[part], width) for part in parts]


def wire_bytes(delta: list[Encoded], new: Bytes) -> int:
    """Of all payloads, those of dense blocks included."""
    whole = [end - start for start, end in (block_range(n, len(new)) for n in range(len(delta)))]
    return sum(n if e.is_dense else len(e.payload) for e, n in zip(delta, whole, strict=True))


def apply(delta: list[Encoded], old: Bytes, out: Bytes, table: Any, new: Bytes) -> int:
    """Makes `out` the newer version, dense blocks from `new`; returns how many are wrong then."""
    decoder, wrong = Decoder(), 0
    for block, each in enumerate(delta):
        part = slice(*block_range(block, len(out)))
        payload = new[part] if each.is_dense else np.frombuffer(each.payload, np.uint8)
        decoder.decode(each.encoding, payload, old[part], out[part])
        wrong += blocks_digest(out[part]) != table[block]
    return wrong


@dataclass
class Steps:
    """What a run of steps came to; shares are of dense bytes."""

    wire: list[float] = field(default_factory=list)
    over_bound: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)
    wrong: int = 0


def run_of_steps(model: Model, text: Tensor, loss: str, lr: float, steps: int) -> Steps:
    """Trains, and sends each step's weights as changes."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.0)
    found, held = Steps(), cast(model)
    out = np.empty_like(held)
    for _ in range(steps):
        _step(model, optimizer, LOSSES[loss](model, text))
        new = cast(model)
        delta = encode(held, new)
        size = wire_bytes(delta, new)
        apply(delta, held, out, digests_of(new), new)
        found.wrong += not np.array_equal(out, new)
        bound, share = bound_bytes(held, new)
        found.wire.append(size / len(new))
        found.over_bound.append(size / bound if bound else math.nan)
        found.changed.append(share)
        held, out = out, held
    return found


def moved(megabytes: int, share: float) -> tuple[Bytes, Bytes]:
    """bf16 noise of the size of weights, and the same with a share of it moved by one step."""
    draws = np.random.default_rng(0)
    count = block_count(megabytes * 1_000_000) * BLOCK_BYTES // 2
    values = torch.from_numpy(draws.standard_normal(count, np.float32) * 0.02)
    old = values.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    new = old.copy()
    places = np.unique(draws.integers(0, count, int(share * count)))
    new[places] += draws.choice(np.array([1, 65535], np.uint16), len(places))
    return old.view(np.uint8), new.view(np.uint8)


@contextmanager
def kernel(name: str) -> Iterator[None]:
    """The compiled kernel, or numpy in its place."""
    if name == "compiled":
        yield
    else:
        with mock.patch.object(changes, "compiled", return_value=None):
            yield


def rates(old: Bytes, new: Bytes) -> dict[str, list[float]]:
    """GB of weights a second of one thread's CPU time: encoding, and applying with its hash."""
    digests, out = digests_of(new), np.ones_like(new)
    taken: dict[str, list[float]] = {"encode": [], "apply and verify": []}
    for _ in range(ROUNDS):
        began = time.thread_time()
        delta = encode(old, new)
        taken["encode"].append(len(new) / (time.thread_time() - began) / 1e9)
        began = time.thread_time()
        apply(delta, old, out, digests, new)
        taken["apply and verify"].append(len(new) / (time.thread_time() - began) / 1e9)
    return taken


def forms(old: Bytes, new: Bytes) -> str:
    """Which encodings a version's blocks took."""
    delta = encode(old, new)
    counts = {e: sum(b.encoding == e for b in delta) for e in Encoding}
    return ", ".join(f"{count} {e.name.lower()}" for e, count in counts.items() if count)


def measure(steps: int, megabytes: int, pretraining: int) -> Result:
    """Everything."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = library_text()
    start = pretrained(text, pretraining).state_dict()
    result = Result("A version as changes of the one before", "% of dense bytes; GB/s of one core")
    short = min(steps - 1, 40)
    for loss, lr, count in (
        ("policy gradient", 1e-6, steps),
        *((loss, lr, short) for loss in LOSSES for lr in (1e-6, 3e-6, 1e-5)),
    ):
        name = f"{loss}, {lr:g}, {count} steps"
        print(name, file=sys.stderr)
        model = Model()
        model.load_state_dict(start)
        found = run_of_steps(model, text, loss, lr, count)
        later = slice(min(WARM_STEPS, count - 1), None)
        result.rows[f"{name}: bytes"] = spread([100 * x for x in found.wire[later]])
        over = spread(found.over_bound[later])
        result.notes[name] = (
            f"first step {100 * found.wire[0]:.2f} % of dense bytes, later"
            f" {100 * np.mean(found.wire[later]):.2f} %, {over.median:.3f} of the entropy bound;"
            f" {100 * np.mean(found.changed[later]):.2f} % of elements changed"
        )
        result.checks += [
            Check(f"{name}: steps that arrived other than they were", found.wrong, 0, ""),
            Check(f"{name}: bytes over the entropy bound", over.median, 1.25, ""),
            Check(f"{name}: most bytes of a step", 100 * max(found.wire), 101, "%"),
        ]
        if (loss, lr) == ("policy gradient", 1e-6) and count > WARM_STEPS:
            mean = 100 * float(np.mean(found.wire[later]))
            what = f"{name}: bytes from step {WARM_STEPS + 1} on"
            result.checks.append(Check(what, mean, 1, "%"))
    for share in (0.002, 0.0135, 0.0875):
        old, new = moved(megabytes, share)
        for name in ("compiled", "numpy") if compiled() is not None else ("numpy",):
            with kernel(name):
                for what, values in rates(old, new).items():
                    row = spread(values)
                    result.rows[f"{what}, {100 * share:g} % changed, {name}"] = row
                    if (what, name, share) == ("encode", "compiled", 0.0135):
                        limit = FAST_GB_PER_S / max(values)
                        result.checks.append(Check("5 GB/s over encoding's best", limit, 1, ""))
        result.notes[f"{100 * share:g} % changed"] = f"{forms(old, new)} blocks"
    noise = np.random.default_rng(1).integers(0, 256, (2, 16 * BLOCK_BYTES), np.uint8)
    dense = wire_bytes(encode(noise[0], noise[1]), noise[1]) / noise[0].size
    result.checks.append(Check("bytes where nothing is alike", 100 * dense, 101, "%"))
    return result


@click.command()
@click.option("--steps", default=1000, show_default=True, help="Of the longest run of AdamW.")
@click.option("--pretraining", default=300, show_default=True, help="Steps before.")
@click.option("--megabytes", default=200, show_default=True, help="Of weights, for the rates.")
@click.option("--json", "as_json", is_flag=True)
def main(steps: int, pretraining: int, megabytes: int, as_json: bool) -> None:
    """Bytes and rates of deltas; exits 1 when a limit is missed."""
    sys.exit(measure(steps, megabytes, pretraining).finish(as_json))


if __name__ == "__main__":
    main()
