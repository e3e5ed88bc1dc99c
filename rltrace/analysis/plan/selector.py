"""A design from four words on a workload: size, output, environment, staleness. Every wall that
these point at is kept, ranked: a large model with agents has both of its walls."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.plan.catalogue import Choice, choose
from rltrace.analysis.plan.hardware import gpu
from rltrace.analysis.plan.placements import ASYNC, COLOCATED, ONE_STEP_OFF, THREE_POOLS
from rltrace.analysis.plan.shapes import by_size
from rltrace.analysis.plan.spec import STALENESS, Environment, Spec
from rltrace.analysis.walls.wall import ENV_REWARD, ROLLOUT, TAIL, WEIGHTS
from rltrace.trace.errors import WrongUsage

OUTPUTS = ("short", "cot", "agent")
ENVIRONMENTS = ("low", "medium", "high")
_LARGE, _GIANT = 70e9, 405e9
_BYTES_EACH = 48.0  # of GPU memory for each parameter: three times its training state


@dataclass(frozen=True)
class Aspect:
    """One wall that a workload points at: the architecture for it, what to do first, the risk."""

    wall: str
    architecture: str
    first: str
    risk: str


@dataclass(frozen=True)
class Design:
    """All of them, the dearest first, the placement that serves the first, and a framework."""

    aspects: tuple[Aspect, ...]
    placement: str
    choice: Choice


def select(
    parameters: float, output: str, environment: str, staleness: str, stack: str = ""
) -> Design:
    """The design. Errors: `RltraceError` for a word that is none of those known."""
    for what, word, known in (
        ("output", output, OUTPUTS),
        ("environment", environment, ENVIRONMENTS),
        ("staleness", staleness, tuple(STALENESS)),
    ):
        if word not in known:
            raise WrongUsage(f"--{what} must be one of {', '.join(known)}, not {word!r}")
    strict = staleness == "strict"
    aspects: list[Aspect] = []
    agentic = output == "agent" or environment == "high"
    if agentic:
        aspects.append(
            Aspect(
                ENV_REWARD,
                "a service graph: environments in a pool of their own",
                "isolate environments; log tokens where the engine makes them",
                "transcripts that drift from what was sampled; failures scored as wrong answers",
            )
        )
    if parameters >= _GIANT:
        aspects.append(
            Aspect(
                WEIGHTS,
                "resharding in place on shared devices" if strict else "async with relays",
                "weights in buckets, by RDMA or through relays; never a full copy to each",
                "memory of shared devices" if strict else "stale weights",
            )
        )
    if output == "cot":
        aspects.append(
            Aspect(
                TAIL,
                "pipelined within a step" if strict else "bounded async",
                "control the tail: partial rollout, length limits that are logged",
                "length bias: what is dropped is what is long",
            )
        )
    if _LARGE <= parameters < _GIANT:
        aspects.append(
            Aspect(
                WEIGHTS,
                "roles on devices of their own",
                "trace a weight update by its phases",
                "updates that take longer than steps",
            )
        )
    if not aspects:
        aspects.append(
            Aspect(
                ROLLOUT,
                "synchronous and colocated",
                "validate reward and loss; trace where the step goes",
                "tuning before measuring",
            )
        )
    placement = _placement(aspects, agentic, strict)
    return Design(
        tuple(aspects),
        placement,
        choose(_spec(parameters, agentic, staleness, stack), placement,
               tuple(aspect.wall for aspect in aspects)),
    )  # fmt: skip


def _placement(aspects: list[Aspect], agentic: bool, strict: bool) -> str:
    if strict:
        return COLOCATED
    if agentic:
        return THREE_POOLS
    if any(aspect.wall == TAIL for aspect in aspects):
        return ASYNC
    return ONE_STEP_OFF if aspects[0].wall == WEIGHTS else COLOCATED


def _spec(parameters: float, agentic: bool, staleness: str, stack: str) -> Spec:
    """A workload of that size on as many H100 as it needs about."""
    h100 = gpu("H100")
    count = max(1, math.ceil(_BYTES_EACH * parameters / h100.memory_bytes))
    return Spec(
        name="", model=by_size(parameters), gpu=h100, gpus=count, prompts=128, group=8,
        mean_tokens=1000, cap_tokens=8000, lag_bound=STALENESS[staleness], stack=stack,
        environment=Environment(calls=1, latency_s=10) if agentic else Environment(),
    )  # fmt: skip
