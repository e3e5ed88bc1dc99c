"""What stages of a step take, and what training holds in memory.

Generation: an iteration makes one token of each of n running sequences. It reads the weights (of a
mixture the experts that some token chose) and every sequence's cache, or arithmetic binds it:

    iteration = overhead + hops + max(weights / bandwidth, 2 active n / peak)
                + n context kv / bandwidth

which the replay takes as token_s + shared_token_s * n, through its points at a quarter of the
sequences and at all of them. So a batch that all engines finish together takes the barrier time,
an engine that always has its slots full the throughput time:

    token_s x (longest chain of tokens through a slot) + shared_token_s x (tokens of an engine)
    (token_s / slots + shared_token_s) x (tokens of an engine)

Training: a token costs 6 FLOP for each active parameter and attention over its sequence, in a
forward pass a third. Optimizer updates with few tokens for each GPU reach less of the MFU. Adam in
mixed precision holds 16 bytes a parameter (ZeRO, arXiv 1910.02054: 2 weights + 2 gradients + 12
optimizer), sharded or not, beside activations (Korthikanti et al., arXiv 2205.05198).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import compress, product

from rltrace.analysis.plan.data_sheets import Gpu, Shape, all_gather_s, all_reduce_s, powers_of_two
from rltrace.analysis.plan.planned_workload import Lengths, Spec
from rltrace.analysis.stats.confidence_interval import makespan
from rltrace.analysis.whatif.workload import PlanConstants
from rltrace.trace.errors import ANSWER_IS_NO, RltraceError
from rltrace.trace.vocabulary import Stage

LIMIT = "its limit of sequences"
_FEWEST = 8  # sequences of an engine: of fewer it is no use, and of more GPUs it is made
_MOST_PLAYED = 1024  # samples of an engine whose waves are played


@dataclass(frozen=True)
class Decoding:
    """One engine of `ways` GPUs. `slots` sequences fit (`because`: what limits them), prefill takes
    `prefill_s` a prompt, `sequence_bytes` is one sequence's cache."""

    ways: int
    slots: float
    because: str
    token_s: float
    shared_token_s: float
    prefill_s: float
    sequence_bytes: float

    def iteration_s(self, running: float) -> float:
        return self.token_s + self.shared_token_s * running

    def tokens_per_s(self, running: float) -> float:
        return running / self.iteration_s(running) if running else 0.0


def decoding(spec: Spec, pool: int, constants: PlanConstants) -> Decoding:
    """The engine for a pool of so many GPUs that gets all sequences of a step, whose samples share
    their prompts; of as many GPUs as is stated, or the fewest that serve. Errors: `RltraceError`
    where no engine holds the weights and a sequence."""
    shape, gpu, prompt = spec.model, spec.gpu, spec.prompt_tokens
    context = prompt + spec.lengths(constants).context
    usable = gpu.memory_bytes * constants["engine_memory_share"]
    sequence = shape.kv_bytes * (context - prompt * (1 - 1 / spec.group))

    def fit(ways: int) -> int:
        return math.floor((usable * ways - shape.weight_bytes) / sequence)

    tried = [spec.rollout_ways] if spec.rollout_ways else powers_of_two(pool)
    ways = next((n for n in tried if fit(n) >= min(_FEWEST, spec.samples)), tried[-1])
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
        ways, slots, LIMIT if limit <= fit(ways) else "memory for caches",
        token_s=scale * max(iteration_s(1.0) - shared_s, iteration_s(many) - shared_s * many),
        shared_token_s=scale * shared_s,
        prefill_s=scale * flop / (ways * gpu.peak * constants["decode_flops_share"]),
        sequence_bytes=sequence,
    )  # fmt: skip


@dataclass(frozen=True)
class Rollout:
    """Generation of a step. Seconds of the batch with a barrier and without (`decode_s`:
    if tools took no time); `chain_tokens` is the longest chain of tokens through a
    slot, `waves` how often the slots are filled, `running` the sequences of an engine. `decoding_s`
    and `env_s` are those of a trajectory on average, `env_group_s` the longest tools of a group,
    `env_pool_s` what all tools of a step take through their workers."""

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
    env_s: float
    decoding_s: float
    env_group_s: float
    env_pool_s: float
    reward_s: float


def rollout(spec: Spec, devices: int, constants: PlanConstants, streams: bool = False) -> Rollout:
    """On engines of as many GPUs as is stated, or of those within a node that generate the fastest
    (`streams`: without a barrier). Errors: as of `decoding`."""
    found = [_rollout(spec, devices, constants)]
    for ways in powers_of_two(min(devices, spec.gpu.node)) if not spec.rollout_ways else ():
        if ways > found[0].engine.ways:
            found.append(_rollout(replace(spec, rollout_ways=ways), devices, constants))
    return min(found, key=lambda one: one.throughput_s if streams else one.barrier_s)


def _rollout(spec: Spec, devices: int, constants: PlanConstants) -> Rollout:
    of = spec.lengths(constants)
    engine = decoding(spec, devices, constants)
    engines = devices // engine.ways
    each = spec.samples / engines
    running, waves = min(each, engine.slots), each / engine.slots
    longest = of.longest(spec.samples)
    chain = longest
    if waves > 1:  # through a slot go several, one after the other
        played = min(int(each), _MOST_PLAYED)
        places = max(1, round(engine.slots * played / each))
        chain = max(longest, makespan(of.batch(played, 1, played).ravel().tolist(), places))
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
        devices, engines, engine, of, chain, waves, running,
        barrier_s=max(decode_s, outside_s + 0.5 * decode_s),
        decode_s=decode_s, env_s=env.mean_s, decoding_s=decoding_s,
        throughput_s=engine.token_s * tokens / full + work_s,
        env_group_s=env.longest_s(spec.group),
        env_pool_s=env.mean_s * spec.samples / env.workers,
        reward_s=env.reward_s * spec.samples / min(env.judges, spec.samples),
    )  # fmt: skip


_MICRO_TOKENS = 16_384.0  # tokens of a micro-batch on a GPU, packed
_H100_FLOP_PER_BYTE = 989e12 / 3.35e12
_ADAM_BYTES = 30.0  # that an update reads and writes for each parameter: state, gradient, weights
_STATE_BYTES = 16.0
_LOGIT_BYTES = 6.0  # of a token and a word: bf16 logits and a float32 copy, computed in chunks
_LOGITS = 8192.0  # tokens whose logits are there at once
_VOCABULARY = 150_000.0


@dataclass(frozen=True)
class LearnerCosts:
    """The learner's stages on `devices` GPUs, seconds a step, and what training is made of. `flop`
    are those of the model (no recompute), `mfu` is what they come to over the time of training and
    the devices' peak; `sharding` says how the weights are taken to be spread. It is `slower` than
    on devices of its own where an engine is on them, too."""

    devices: float
    serial_s: dict[Stage, float]
    arithmetic_s: float
    collectives_s: float
    bubble_s: float
    flop: float
    mfu: float
    sharding: str
    slower: float = 1.0

    @property
    def total_s(self) -> float:
        """All stages one after the other."""
        return sum(self.serial_s.values())


def learner(
    spec: Spec, devices: float, constants: PlanConstants, shared: bool = False
) -> LearnerCosts:
    """Training and its passes: slower where an engine shares memory with them, and offloads."""
    shape, gpu = spec.model, spec.gpu
    square = spec.square(spec.lengths(constants))
    forward = 2 * shape.active * spec.trained_tokens + shape.attention_flop(square) * spec.samples
    flop = 3 * forward
    each = spec.trained_tokens / (spec.updates * devices)
    mfu = _base_mfu(shape, gpu, constants) * each / (each + constants["half_efficiency_tokens"])
    peak = devices * gpu.peak
    arithmetic_s = flop * constants["recompute_factor"] / (peak * mfu)
    collectives_s, sharding = _collectives(spec, devices, constants)
    micro = spec.samples * spec.pipeline * max(1, spec.tensor) / (spec.updates * devices)
    idle = (spec.pipeline - 1) / max(1.0, micro)
    adam_s = spec.updates * _ADAM_BYTES * shape.parameters / (devices * gpu.bandwidth)
    train_s = arithmetic_s + collectives_s + arithmetic_s * idle + adam_s
    forward_s = forward / (peak * mfu * constants["forward_share"]) * (1 + idle)
    forward_s += collectives_s / (3 * spec.updates)
    scale = spec.calibrated.get("train", 1.0)
    slower = 1 / constants["own_devices"] if shared else 1.0
    stages = {Stage.TRAIN: slower * train_s * scale * (2 if spec.critic else 1)}
    passes = (Stage.LOGPROB, Stage.REFERENCE, Stage.VALUE)
    there = (spec.logprob, spec.reference, spec.critic)
    pass_s = slower * forward_s * spec.calibrated.get("logprob", scale)
    stages |= dict.fromkeys(compress(passes, there), pass_s)
    return LearnerCosts(
        devices, stages, arithmetic_s, collectives_s, arithmetic_s * idle, flop,
        flop / (peak * train_s), sharding, slower,
    )  # fmt: skip


def _base_mfu(shape: Shape, gpu: Gpu, constants: PlanConstants) -> float:
    """MFU without fixed costs. What is not a matrix product takes time by the memory's bandwidth,
    so a GPU with little arithmetic for its bandwidth comes nearer to its peak:

        1 / MFU = 1 / best + (1 / MFU of an H100 - 1 / best) x FLOPs a byte / those of an H100
    """
    usual = constants["train_mfu_mixture" if shape.is_mixture else "train_mfu"]
    best = max(usual, constants["best_mfu"])
    balance = gpu.peak / gpu.bandwidth / _H100_FLOP_PER_BYTE
    return 1 / (1 / best + (1 / usual - 1 / best) * balance)


def _collectives(spec: Spec, devices: float, constants: PlanConstants) -> tuple[float, str]:
    """Seconds that collectives hold training up, by the cheaper way: sharded over all GPUs (FSDP,
    ZeRO-3: 3 times the weights a micro-batch), or split (tensor parallel: 4 all-reduces of the
    activations a layer; experts: tokens there and back; one of the gradients an update)."""
    shape, gpu = spec.model, spec.gpu
    exposed = constants["communication_exposed"]
    tokens = spec.trained_tokens
    micro = max(spec.updates, math.ceil(tokens / devices / _MICRO_TOKENS))
    sharded = 3 * micro * all_gather_s(shape.weight_bytes, devices, gpu.link(devices))
    tensor = spec.tensor or min(gpu.node, devices)
    ways = spec.tensor * spec.pipeline * spec.expert
    # Else over as many GPUs as hold weights and gradients in a third of their memory.
    hold = 2.0 ** math.ceil(math.log2(max(1.0, 3 * 2 * shape.weight_bytes / gpu.memory_bytes)))
    copy = min(devices, ways or hold)
    size = 2 * shape.hidden * tokens * tensor / devices
    split = 4 * shape.layers * all_reduce_s(size, tensor, gpu.link(tensor))
    gradients = shape.weight_bytes / copy
    split += spec.updates * all_reduce_s(gradients, devices / copy, gpu.link(devices))
    if shape.is_mixture and copy > 1:  # to the experts and back, forward and twice backward
        sent = 2 * 3 * 2 * shape.hidden * shape.chosen * shape.layers * tokens / devices
        split += sent / gpu.link(copy)
    if spec.tensor or split < sharded:
        return exposed * split, f"a copy of the weights split over {copy:.0f}, data parallel beside"
    return exposed * sharded, f"parameters sharded over all {devices:.0f} (ZeRO-3, FSDP)"


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on each of `devices` GPUs. `stage` is the ZeRO stage ("3 + offload": the optimizer on
    the host); a sequence is split over `ways` GPUs; `recompute`: activations are computed again."""

    devices: int
    stage: str
    state_bytes: float
    activation_bytes: float
    usable_bytes: float
    ways: int
    recompute: bool


def zero_bytes(parameters: float, devices: float) -> dict[str, float]:
    """State on each GPU by ZeRO stage; with offload the host has the optimizer's 12 bytes."""
    return {
        "0": _STATE_BYTES * parameters,
        "1": (4 + 12 / devices) * parameters,
        "2": (2 + 14 / devices) * parameters,
        "3": _STATE_BYTES * parameters / devices,
        "3 + offload": 4 * parameters / devices,
    }


def activation_bytes(layers: float, tokens: float, hidden: float, recompute: bool) -> float:
    """Activations of `tokens` tokens with flash attention: 34 bytes a token, layer and hidden size,
    or with recompute the input of each layer (2 bytes) and one whole layer."""
    whole = tokens * hidden * 34
    return layers * 2 * tokens * hidden + whole if recompute else layers * whole


def training_memory(spec: Spec, devices: int, constants: PlanConstants) -> TrainingMemory:
    """The least effort that fits: the lowest ZeRO stage with recompute, then offload, one sequence
    of the longest kind in a micro-batch, split over as few GPUs as hold it. Errors: `RltraceError`
    with the number, where nothing fits."""
    model, gpu = spec.model, spec.gpu
    usable = gpu.memory_bytes * constants["training_memory_share"]
    sequence = spec.prompt_tokens + spec.cap_tokens
    states = zero_bytes(model.parameters * (2 if spec.critic else 1), devices)
    frozen = model.weight_bytes / devices if spec.reference else 0.0
    ways_within = powers_of_two(int(min(devices, gpu.node)))
    for (stage, held), ways, recompute in product(states.items(), ways_within, (False, True)):
        part = sequence / ways
        logits = min(part, _LOGITS) * _VOCABULARY * _LOGIT_BYTES
        acts = activation_bytes(model.layers, part, model.hidden, recompute) + logits
        if held + frozen + acts <= usable:
            return TrainingMemory(devices, stage, held + frozen, acts, usable, ways, recompute)
    raise RltraceError(
        f"training {model.name} does not fit on {devices} × {gpu.name}: its state is "
        f"{_STATE_BYTES * model.parameters / 1e9:,.0f} GB (16 bytes a parameter), and activations "
        f"of one sequence of {sequence:,.0f} tokens take {acts / 1e9:,.0f} GB on each of {ways}, "
        f"which have {usable / 1e9:.0f} GB (at least "
        f"{math.ceil(_STATE_BYTES * model.parameters / usable)} GPUs for the state alone)",
        ANSWER_IS_NO,
    )
