"""What a learner step takes: arithmetic at an MFU, collectives of sharded weights, the passes that
only go forward; and what it would have to reach to be faster than that.

A trained token costs 6 FLOP for each active parameter and attention over its sequence; a forward
pass a third. Optimizer updates with few tokens for each GPU reach less of the MFU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.hardware import Gpu, all_gather_s, all_reduce_s
from rltrace.analysis.plan.shapes import Shape
from rltrace.trace.errors import WrongUsage

_MICRO_TOKENS = 16_384.0
"""Tokens of a micro-batch on a GPU, packed."""
_H100_FLOP_PER_BYTE = 989e12 / 3.35e12
_ADAM_BYTES = 30.0  # that an update reads and writes for each parameter: state, gradient, weights


@dataclass(frozen=True)
class Layout:
    """Training's parallelism where it is stated: ways of tensor, pipeline and expert parallelism;
    tensor 0: nothing is stated, and the cheaper way is taken."""

    tensor: int = 0
    pipeline: int = 1
    expert: int = 1

    @property
    def ways(self) -> float:
        """Over how many GPUs one copy of the weights is split."""
        return float(max(1, self.tensor) * self.pipeline * self.expert)


@dataclass(frozen=True)
class Training:
    """Seconds of the learner's stages in a step. `flop` are those of the model (no recompute),
    `mfu` is what they come to over `train_s` and the devices' peak; `sharding` says how the weights
    are taken to be spread."""

    train_s: float
    arithmetic_s: float
    collectives_s: float
    bubble_s: float
    forward_s: float
    flop: float
    mfu: float
    sharding: str


def training(
    shape: Shape,
    gpu: Gpu,
    devices: float,
    constants: PlanConstants,
    tokens: float,
    square: float,
    sequences: float,
    updates: int,
    epochs: float = 1.0,
    layout: Layout = Layout(),
) -> Training:
    """A step that trains on `tokens` (prompts too) in `sequences` sequences of mean square
    `square`, in so many optimizer `updates`, `epochs` times over."""
    forward = 2 * shape.active * tokens + shape.attention_flop(square) * sequences
    flop = 3 * forward * epochs
    base = base_mfu(shape, gpu, constants)
    each = tokens * epochs / (updates * devices)
    mfu = base * each / (each + constants["half_efficiency_tokens"])
    peak = devices * gpu.peak
    arithmetic = flop * constants["recompute_factor"] / (peak * mfu)
    collectives, sharding = _collectives(
        shape, gpu, devices, constants, tokens, updates, epochs, layout
    )
    waves = max(
        1.0, sequences * epochs * layout.pipeline * max(1, layout.tensor) / (updates * devices)
    )
    idle = (layout.pipeline - 1) / waves
    bubble = arithmetic * idle
    adam = updates * _ADAM_BYTES * shape.parameters / (devices * gpu.bandwidth)
    train = arithmetic + collectives + bubble + adam
    ahead = forward / (peak * mfu * constants["forward_share"]) * (1 + idle)
    ahead += collectives / (3 * updates * epochs)
    return Training(
        train, arithmetic, collectives, bubble, ahead, flop, flop / (peak * train), sharding
    )


def base_mfu(shape: Shape, gpu: Gpu, constants: PlanConstants) -> float:
    """MFU without fixed costs. What is not a matrix product takes time by the memory's bandwidth,
    so a GPU with little arithmetic for its bandwidth comes nearer to its peak:

        1 / MFU = 1 / best + (1 / MFU of an H100 - 1 / best) x FLOPs a byte / those of an H100
    """
    usual = constants["train_mfu_mixture" if shape.is_mixture else "train_mfu"]
    best = max(usual, constants["best_mfu"])
    balance = gpu.peak / gpu.bandwidth / _H100_FLOP_PER_BYTE
    return 1 / (1 / best + (1 / usual - 1 / best) * balance)


def _collectives(
    shape: Shape, gpu: Gpu, devices: float, constants: PlanConstants, tokens: float, updates: int,
    epochs: float, layout: Layout,
) -> tuple[float, str]:  # fmt: skip
    """Seconds that collectives hold training up, by the cheaper way: parameters sharded over all
    GPUs and gathered for each micro-batch (FSDP, ZeRO-3: 3 times the weights), or split and joined
    for each layer (tensor parallel: 4 all-reduces of the activations; experts: tokens there and
    back) with one all-reduce of the gradients an update."""
    exposed = constants["communication_exposed"]
    each = tokens * epochs / devices
    micro = max(updates, math.ceil(each / _MICRO_TOKENS))
    sharded = 3 * micro * all_gather_s(shape.weight_bytes, devices, gpu.link(devices))
    tensor = layout.tensor or min(gpu.node, devices)
    copy = min(devices, layout.ways if layout.tensor else _ways_that_hold(shape, gpu))
    size = 2 * shape.hidden * tokens * epochs * tensor / devices
    split = 4 * shape.layers * all_reduce_s(size, tensor, gpu.link(tensor))
    gradients = shape.weight_bytes / copy
    split += updates * all_reduce_s(gradients, devices / copy, gpu.link(devices))
    if shape.is_mixture and copy > 1:  # to the experts and back, forward and twice backward
        sent = 2 * 3 * 2 * shape.hidden * shape.chosen * shape.layers * tokens * epochs / devices
        split += sent / gpu.link(copy)
    if layout.tensor or split < sharded:
        return exposed * split, f"a copy of the weights split over {copy:.0f}, data parallel beside"
    return exposed * sharded, f"parameters sharded over all {devices:.0f} (ZeRO-3, FSDP)"


def _ways_that_hold(shape: Shape, gpu: Gpu) -> float:
    """GPUs over which weights and gradients take a third of the memory."""
    return 2.0 ** math.ceil(math.log2(max(1.0, 3 * 2 * shape.weight_bytes / gpu.memory_bytes)))


def refuse_mfu(
    name: str, flop: float, devices: float, gpu: Gpu, seconds: float, constants: PlanConstants
) -> None:
    """Errors: `RltraceError` where stated seconds of a stage would need more than any job reaches,
    with the share of the peak and the least time."""
    if not seconds > 0:
        return
    most = constants["highest_mfu"]
    mfu = flop / (seconds * devices * gpu.peak)
    if mfu > most:
        raise WrongUsage(
            f"{name} in {seconds:g} s is refused: {flop:.3g} FLOP on {devices:g} x {gpu.name} "
            f"would be {100 * mfu:.0f} % MFU; above {100 * most:.0f} % nothing runs, so it takes "
            f"at least {mfu * seconds / most:.1f} s"
        )


def refuse_bandwidth(
    tokens_per_s: float, shape: Shape, gpu: Gpu, devices: float, batch: float, context: float
) -> None:
    """Errors: `RltraceError` where a stated rate of decoding would read more than the memory gives
    with `batch` sequences on all `devices`."""
    read = shape.read_bytes(batch) + batch * context * shape.kv_bytes
    most = batch * devices * gpu.bandwidth / read
    if tokens_per_s > most:
        raise WrongUsage(
            f"{tokens_per_s:,.0f} tokens/s are refused: with {batch:g} sequences a token of each "
            f"reads {read / 1e9:,.1f} GB, and {devices:g} x {gpu.name} read "
            f"{devices * gpu.memory_tb_per_s:,.1f} TB/s, so {most:,.0f} tokens/s are the most"
        )
