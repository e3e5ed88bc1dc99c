"""What an inference engine does with a batch: the roofline of decoding, prefill, and how many
sequences its memory holds.

An iteration makes one token of each running sequence. It reads the weights (of a mixture the
experts that some token chose) and every sequence's cache, or is bound by arithmetic where the batch
is large:

    iteration = overhead + hops + max(weights / bandwidth, 2 active n / peak)
                + n context kv / bandwidth

which the replay takes as token_s + shared_token_s * n, through its points at a quarter of the
sequences and at all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.hardware import Gpu, all_reduce_s, powers_of_two
from rltrace.analysis.plan.shapes import Shape
from rltrace.trace.errors import ANSWER_IS_NO, RltraceError

LIMIT = "its limit of sequences"
_FEWEST = 8
"""Sequences below which an engine is no use: the next larger tensor parallelism is taken."""


@dataclass(frozen=True)
class Decoding:
    """One engine of `ways` GPUs. `slots` sequences fit (`because` says what limits them), a token
    takes `token_s + shared_token_s * n` with n of them running, prefill `prefill_s` a prompt;
    `cache_bytes` are left for caches on all its GPUs, `sequence_bytes` is one sequence's cache."""

    ways: int
    slots: float
    because: str
    token_s: float
    shared_token_s: float
    prefill_s: float
    cache_bytes: float
    sequence_bytes: float
    weight_bytes: float

    def iteration_s(self, running: float) -> float:
        """Seconds of an iteration with so many sequences."""
        return self.token_s + self.shared_token_s * running

    def tokens_per_s(self, running: float) -> float:
        """Tokens/s of the engine with so many sequences running."""
        return running / self.iteration_s(running) if running else 0.0


def decoding(
    shape: Shape,
    gpu: Gpu,
    constants: PlanConstants,
    context: float,
    prompt: float,
    share_prompt: int,
    per_pool: float,
    pool: int,
    ways: int = 0,
    most: float = math.nan,
) -> Decoding:
    """The engine for a pool of `pool` GPUs that gets `per_pool` sequences of `context` tokens (the
    prompt included, which `share_prompt` samples share). `ways`: its GPUs (0: the fewest that
    serve); `most`: its limit of sequences (NaN: the constant).

    Errors: `RltraceError` with the number, where no engine holds the weights or a sequence.
    """
    tried = [ways] if ways else powers_of_two(pool)
    usable = gpu.memory_bytes * constants["engine_memory_share"]
    sequence = shape.kv_bytes * (context - prompt * (1 - 1 / share_prompt))
    limit = constants["engine_sequences"] if math.isnan(most) else most
    for n in tried:
        if n > pool:
            break
        room = usable * n - shape.weight_bytes
        fit = math.floor(room / sequence) if room > 0 else 0
        if fit < min(_FEWEST, per_pool) and n != tried[-1] and 2 * n <= pool:
            continue
        if room <= 0:
            break
        if fit < 1:
            raise RltraceError(
                f"no slot can hold a sequence: {context:,.0f} tokens take {sequence / 1e9:.3g} GB "
                f"of cache, and {n} x {gpu.name} have {room / 1e9:.3g} GB left beside the weights",
                ANSWER_IS_NO,
            )
        slots = max(1.0, min(fit, limit))
        because = LIMIT if limit <= fit else "memory for caches"
        wanted = max(1.0, min(slots, per_pool * n / pool))
        return _made(
            shape, gpu, constants, context, prompt, n, slots, because, wanted, room, sequence
        )
    needed = math.ceil(shape.weight_bytes / usable) if usable else 0
    raise RltraceError(
        f"{shape.name} does not fit an engine on {pool} x {gpu.name}: its weights are "
        f"{shape.weight_bytes / 1e9:,.0f} GB, and {ways or pool} of them give an engine "
        f"{(ways or pool) * usable / 1e9:,.0f} GB (at least {needed} are needed)",
        ANSWER_IS_NO,
    )


def _made(
    shape: Shape, gpu: Gpu, constants: PlanConstants, context: float, prompt: float, ways: int,
    slots: float, because: str, wanted: float, room: float, sequence: float,
) -> Decoding:  # fmt: skip
    def iteration(running: float) -> float:
        return _iteration_s(shape, gpu, constants, context, ways, running)

    few, many = max(1.0, wanted / 4), max(2.0, wanted)
    shared = max(0.0, (iteration(many) - iteration(few)) / (many - few))
    alone = max(iteration(1.0) - shared, iteration(many) - shared * many)
    flop = 2 * shape.active * prompt + shape.attention_flop(prompt * prompt)
    prefill = flop / (ways * gpu.peak * constants["decode_flops_share"]) if prompt else 0.0
    return Decoding(
        ways, slots, because, alone, shared, prefill, room, sequence, shape.weight_bytes
    )  # fmt: skip


def _iteration_s(
    shape: Shape, gpu: Gpu, constants: PlanConstants, context: float, ways: int, running: float
) -> float:
    bandwidth = ways * gpu.bandwidth * constants["decode_bandwidth_share"]
    arithmetic = 2 * shape.active * running
    arithmetic /= ways * gpu.peak * constants["decode_flops_share"]
    weights = max(shape.read_bytes(running) / bandwidth, arithmetic)
    caches = running * context * shape.kv_bytes / bandwidth
    hops = 0.0
    if ways > 1:
        kind = "hop_latency_near_s" if ways <= gpu.node else "hop_latency_far_s"
        size = 2 * running * shape.hidden
        hops = 2 * shape.layers * all_reduce_s(size, ways, gpu.link(ways), constants[kind])
    return constants["decode_overhead_s"] + weights + caches + hops
