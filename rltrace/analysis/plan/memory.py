"""What training holds in a GPU's memory, and whether it fits: 16 bytes a parameter for Adam in
mixed precision (ZeRO, arXiv 1910.02054: 2 weights + 2 gradients + 12 optimizer), sharded or not,
and activations (Korthikanti et al., arXiv 2205.05198)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.hardware import powers_of_two
from rltrace.analysis.plan.spec import Spec
from rltrace.trace.errors import ANSWER_IS_NO, RltraceError

STATE_BYTES = 16.0
_OPTIMIZER_BYTES = 12.0
_COPY_GB_PER_S = 20.0  # from a GPU into a staging buffer
_LOGIT_BYTES = 6.0  # of a token and a word: bf16 logits and a float32 copy, computed in chunks
_LOGITS = 8192.0  # tokens whose logits are there at once
_VOCABULARY = 150_000.0


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on each of `devices` GPUs. `stage` is the ZeRO stage (or "3 + offload", where the
    optimizer lives on the host), `ways` over how many GPUs one sequence is split, `recompute`
    whether activations are computed again. `stall_s` is how long the learner stands still while its
    weights are copied out."""

    devices: int
    stage: str
    state_bytes: float
    activation_bytes: float
    usable_bytes: float
    ways: int
    recompute: bool
    offloads: bool
    stall_s: float
    by_stage: dict[str, float]


def zero_bytes(parameters: float, devices: float) -> dict[str, float]:
    """State on each GPU by ZeRO stage: 16, 4 + 12 / n, 2 + 14 / n and 16 / n bytes a parameter."""
    return {
        "0": STATE_BYTES * parameters,
        "1": (4 + 12 / devices) * parameters,
        "2": (2 + 14 / devices) * parameters,
        "3": STATE_BYTES * parameters / devices,
        "3 + offload": (STATE_BYTES - _OPTIMIZER_BYTES) * parameters / devices,
    }


def activation_bytes(
    layers: float, tokens: float, hidden: float, recompute: bool, heads: int = 0
) -> float:
    """Activations of `tokens` tokens: 34 bytes a token, layer and hidden size with flash attention
    (5 heads x tokens / hidden more without: `heads` above 0), or with recompute the input of each
    layer (2 bytes) and one whole layer."""
    whole = tokens * hidden * (34 + 5 * heads * tokens / hidden)
    return layers * 2 * tokens * hidden + whole if recompute else layers * whole


def training_memory(spec: Spec, devices: int, constants: PlanConstants) -> TrainingMemory:
    """The least effort that fits: the lowest ZeRO stage with recompute, then offload, one sequence
    of the longest kind in a micro-batch, split over as few GPUs as hold it.

    Errors: `RltraceError` with the number, where nothing fits.
    """
    model, gpu = spec.model, spec.gpu
    usable = gpu.memory_bytes * constants["training_memory_share"]
    sequence = spec.prompt_tokens + spec.cap_tokens
    if math.isinf(sequence):
        sequence = spec.prompt_tokens + spec.lengths(constants).longest(spec.samples)
    states = zero_bytes(model.parameters * (2 if spec.critic else 1), devices)
    frozen = model.weight_bytes / devices if spec.reference else 0.0
    copied = model.weight_bytes / devices / (1e9 * _COPY_GB_PER_S)
    for stage, held in states.items():
        state = held + frozen
        for ways in powers_of_two(devices):
            part = sequence / ways
            logits = min(part, _LOGITS) * _VOCABULARY * _LOGIT_BYTES
            for recompute in (False, True):
                acts = activation_bytes(model.layers, part, model.hidden, recompute) + logits
                if state + acts <= usable:
                    return TrainingMemory(
                        devices, stage, state, acts, usable, ways, recompute,
                        "offload" in stage, copied, states,
                    )  # fmt: skip
            if ways * 2 > max(gpu.node, 1):
                break
    least = states["3"] + frozen
    needed = math.ceil(STATE_BYTES * model.parameters / usable)
    raise RltraceError(
        f"training {model.name} does not fit on {devices} x {gpu.name}: its state is "
        f"{STATE_BYTES * model.parameters / 1e9:,.0f} GB (16 bytes a parameter), sharded "
        f"{least / 1e9:,.1f} GB a GPU, of which {usable / 1e9:.0f} GB can be used; the "
        f"activations of one sequence of {sequence:,.0f} tokens take {acts / 1e9:,.0f} GB on each "
        f"of {ways} (at least {needed} GPUs for the state alone)",
        ANSWER_IS_NO,
    )
