"""Generation: what an engine does with a batch, and what a step's batch takes.

An iteration makes one token of each running sequence. It reads the weights (of a mixture the
experts that some token chose) and every sequence's cache, or is bound by arithmetic where the batch
is large:

    iteration = overhead + hops + max(weights / bandwidth, 2 active n / peak)
                + n context kv / bandwidth

which the replay takes as token_s + shared_token_s * n, through its points at a quarter of the
sequences and at all of them. So a batch that all engines finish together takes

    token_s x (longest chain of tokens through a slot) + shared_token_s x (tokens of an engine)

which is the barrier time; an engine that always has its slots full takes, for the same tokens,
`(token_s / slots + shared_token_s) x tokens`, the throughput time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.order_statistics import makespan
from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.hardware import all_reduce_s, powers_of_two
from rltrace.analysis.plan.spec import Lengths, Spec
from rltrace.trace.errors import ANSWER_IS_NO, RltraceError

LIMIT = "its limit of sequences"
_FEWEST = 8
"""Sequences below which an engine is no use: the next larger tensor parallelism is taken."""
_MOST_PLAYED = 1024  # samples of an engine whose waves are played


@dataclass(frozen=True)
class Decoding:
    """One engine of `ways` GPUs. `slots` sequences fit (`because` says what limits them), a token
    takes `token_s + shared_token_s * n` with n of them running, prefill `prefill_s` a prompt;
    `sequence_bytes` is one sequence's cache."""

    ways: int
    slots: float
    because: str
    token_s: float
    shared_token_s: float
    prefill_s: float
    sequence_bytes: float

    def iteration_s(self, running: float) -> float:
        """Seconds of an iteration with so many sequences."""
        return self.token_s + self.shared_token_s * running

    def tokens_per_s(self, running: float) -> float:
        """Tokens/s of the engine with so many sequences running."""
        return running / self.iteration_s(running) if running else 0.0


def decoding(spec: Spec, pool: int, constants: PlanConstants) -> Decoding:
    """The engine for a pool of `pool` GPUs that gets all sequences of a step, whose samples share
    their prompts; of as many GPUs as is stated, or the fewest that serve. Errors: `RltraceError`
    with the number, where no engine holds the weights and a sequence."""
    shape, gpu, prompt = spec.model, spec.gpu, spec.prompt_tokens
    context = prompt + spec.lengths(constants).context
    usable = gpu.memory_bytes * constants["engine_memory_share"]
    sequence = shape.kv_bytes * (context - prompt * (1 - 1 / spec.group))

    def fit(ways: int) -> int:
        return math.floor((usable * ways - shape.weight_bytes) / sequence)

    tried = [spec.rollout_ways] if spec.rollout_ways else powers_of_two(pool)
    enough = (n for n in tried if fit(n) >= min(_FEWEST, spec.samples))
    ways = next(enough, tried[-1])
    if ways > pool or fit(ways) < 1:
        raise RltraceError(
            f"{shape.name} does not fit an engine of {ways} × {gpu.name} (a pool of {pool}): its "
            f"weights are {shape.weight_bytes / 1e9:,.0f} GB, a sequence of {context:,.0f} tokens "
            f"takes {sequence / 1e9:.3g} GB of cache, and {usable * ways / 1e9:,.0f} GB can be used"
            f" (at least {math.ceil((shape.weight_bytes + sequence) / usable)} GPUs are needed)",
            ANSWER_IS_NO,
        )
    limit = constants["engine_sequences"] if math.isnan(spec.slots) else spec.slots
    slots = max(1.0, min(fit(ways), limit))
    wanted = max(1.0, min(slots, spec.samples * ways / pool))

    def iteration_s(running: float) -> float:
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

    few, many = max(1.0, wanted / 4), max(2.0, wanted)
    shared_s = max(0.0, (iteration_s(many) - iteration_s(few)) / (many - few))
    flop = 2 * shape.active * prompt + shape.attention_flop(prompt * prompt)
    scale = spec.calibrated.get("rollout", 1.0)
    return Decoding(
        ways=ways,
        slots=slots,
        because=LIMIT if limit <= fit(ways) else "memory for caches",
        token_s=scale * max(iteration_s(1.0) - shared_s, iteration_s(many) - shared_s * many),
        shared_token_s=scale * shared_s,
        prefill_s=scale * flop / (ways * gpu.peak * constants["decode_flops_share"]),
        sequence_bytes=sequence,
    )


@dataclass(frozen=True)
class Rollout:
    """Generation of a step on `devices` GPUs: `engines` of them decode as `engine` says. Seconds of
    the batch with a barrier and without (`decode_s`, `untooled_s`: if tools took no time);
    `chain_tokens` is the longest chain of tokens through a slot, `waves` how often the slots are
    filled, `running` the sequences of an engine. `decoding_s` and `env_s` are those of a trajectory
    on average, `env_group_s` the longest tools of a group, `env_pool_s` what all tools of a step
    take through their workers."""

    devices: float
    engines: float
    engine: Decoding
    lengths: Lengths
    chain_tokens: float
    waves: float
    running: float
    barrier_s: float
    decode_s: float
    throughput_s: float
    untooled_s: float
    env_s: float
    decoding_s: float
    env_group_s: float
    env_pool_s: float
    reward_s: float


def rollout(spec: Spec, devices: int, constants: PlanConstants) -> Rollout:
    """Generation on so many GPUs."""
    of = spec.lengths(constants)
    engine = decoding(spec, devices, constants)
    engines = devices // engine.ways
    each = spec.samples / engines
    running = min(each, engine.slots)
    waves = each / engine.slots
    longest = of.longest(spec.samples)
    chain = longest if waves <= 1 else max(longest, _chain(of, each, engine.slots))
    tokens = spec.response_tokens / engines
    work_s = engine.shared_token_s * tokens + engine.prefill_s * spec.prompts / engines
    decode_s = engine.token_s * chain + work_s
    env = spec.environment
    outside_s = max(1.0, spec.samples / env.workers) * env.longest_s(spec.samples)
    decoding_s = of.mean * engine.iteration_s(running)
    # Tools take no slot: samples of the batches begun meanwhile decode, as far as there are any.
    busy = running * decoding_s / (decoding_s + env.mean_s)
    full = max(1.0, min(running, busy * (1 + max(1.0, spec.lag_bound))))
    return Rollout(
        devices=devices,
        engines=engines,
        engine=engine,
        lengths=of,
        chain_tokens=chain,
        waves=waves,
        running=running,
        barrier_s=max(decode_s, outside_s + 0.5 * decode_s),
        decode_s=decode_s,
        throughput_s=engine.token_s * tokens / full + work_s,
        untooled_s=engine.token_s * tokens / running + work_s,
        env_s=env.mean_s,
        decoding_s=decoding_s,
        env_group_s=env.longest_s(spec.group),
        env_pool_s=env.mean_s * spec.samples / env.workers,
        reward_s=env.reward_s * spec.samples / min(env.judges, spec.samples),
    )


def _chain(of: Lengths, samples: float, slots: float) -> float:
    """Longest chain of tokens through a slot where samples come in waves."""
    played = min(int(samples), _MOST_PLAYED)
    places = max(1, round(slots * played / samples))
    return makespan(of.batch(played, 1, played).ravel().tolist(), places)
