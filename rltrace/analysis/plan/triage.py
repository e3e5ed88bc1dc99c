"""Triage before there is a run: of rough seconds of stages, or of words.

The step is composed as elsewhere here: stages that take turns add up; where actors and learner run
beside each other the longer chain counts, and the part of weight movement that is not hidden. A
wall costs what the step would be shorter without it: w of a chain A beside a chain L costs
max(A, L) - max(A - w, L), so the largest single stage is not always the wall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress

from rltrace.analysis.binding import RESOURCE_OF
from rltrace.analysis.plan.breakdown import how_many_bind
from rltrace.analysis.plan.constants import check_limits
from rltrace.analysis.plan.frameworks import Choice, choose
from rltrace.analysis.plan.hardware import gpu
from rltrace.analysis.plan.placements import ASYNC, COLOCATED, ONE_STEP_OFF, THREE_POOLS
from rltrace.analysis.plan.shapes import by_size
from rltrace.analysis.plan.spec import STALENESS, Environment, Spec
from rltrace.analysis.playbook import Move, moves
from rltrace.analysis.walls.wall import ENV_REWARD, ROLLOUT, TAIL, WEIGHTS
from rltrace.analysis.whatif.predict import NO_GAIN, SLOWER, Prediction, Source, predictor
from rltrace.analysis.whatif.stated import stated
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.vocabulary import Stage, word

PLACEMENTS = ("colocated", "one-step-off", "async")


@dataclass(frozen=True)
class Stages:
    """Seconds a step. `rollout` ends with the longest sample; `throughput` is what its work takes
    at the rate of full engines (NaN: the same). `overlap` is the part of an update of weights that
    other work hides where there is other work. `reference_side`: "learner" or "actor"."""

    rollout: float
    reward: float = 0.0
    env: float = 0.0
    reference: float = 0.0
    logprob: float = 0.0
    value: float = 0.0
    train: float = 0.0
    sync: float = 0.0
    switch: float = 0.0
    throughput: float = math.nan
    overlap: float = 0.55
    reference_side: str = "learner"

    @property
    def work_s(self) -> float:
        """Generation without waiting for the longest sample."""
        return self.rollout if math.isnan(self.throughput) else self.throughput


@dataclass(frozen=True)
class Step:
    """The step of a placement, seconds: both chains, what is exposed of moving weights, and all."""

    placement: str
    formula: str
    actors_s: float
    learner_s: float
    weights_s: float
    step_s: float


@dataclass(frozen=True)
class WallCost:
    """What the step would be shorter by without a wall, as a part of it."""

    wall: str
    share: float


@dataclass(frozen=True)
class First:
    """The first thing to do: a move of the playbook against a wall, and what the replay predicts of
    it (None: nothing does)."""

    wall: str
    move: str
    lever: str
    found: Prediction | None
    risk: str = field(metadata={"json": False})


@dataclass(frozen=True)
class Triage:
    """`steps` by placement; `walls` of the one that was asked for, the dearest first."""

    stages: Stages
    placement: str
    steps: tuple[Step, ...]
    walls: tuple[WallCost, ...]

    @property
    def binding(self) -> tuple[WallCost, ...]:
        """What binds; nothing where it is balanced."""
        return self.walls[: how_many_bind(wall.share for wall in self.walls)]

    @property
    def gain(self) -> float:
        """The colocated step over the asynchronous one, on devices that are as many for each stage
        as before: at equal devices in all, none of it comes from turning a sum into a maximum."""
        by_name = {step.placement: step.step_s for step in self.steps}
        return by_name["colocated"] / by_name["async"]


def triage(stages: Stages, placement: str = "colocated") -> Triage:
    """The answer. Errors: `RltraceError` for seconds or a placement that make no sense."""
    _check(stages)
    if placement not in PLACEMENTS:
        raise WrongUsage(f"placement must be one of {', '.join(PLACEMENTS)}, not {placement!r}")
    steps = tuple(composed(stages, one) for one in PLACEMENTS)
    return Triage(stages, placement, steps, _walls(stages, placement))


def composed(stages: Stages, placement: str, without: Mapping[str, float] | None = None) -> Step:
    """The step of a placement, with some seconds less of some stages."""
    less = without or {}

    def of(name: str) -> float:
        return float(getattr(stages, name)) - less.get(name, 0.0)

    rollout = stages.work_s if placement == "async" else stages.rollout
    rollout = max(0.0, rollout - less.get("rollout", 0.0))
    actors = rollout + of("env") + of("reward")
    learner = of("logprob") + of("value") + of("train")
    if stages.reference_side == "actor":
        actors += of("reference")
    else:
        learner += of("reference")
    if placement == "colocated":
        weights = of("sync") + of("switch")
        return Step(placement, "sum", actors, learner, weights, actors + learner + weights)
    weights = of("sync") * (1 - stages.overlap)
    formula = "max(actors, learner) + exposed weights"
    return Step(placement, formula, actors, learner, weights, max(actors, learner) + weights)


def _check(stages: Stages) -> None:
    for name, value in vars(stages).items():
        if name == "reference_side" or (name == "throughput" and math.isnan(value)):
            continue
        if not 0 <= value < math.inf:
            raise WrongUsage(f"{name} must not be negative or infinite, and is {value:g}")
        check_limits("triage.seconds", value, name)
    if not 0 <= stages.overlap <= 1:
        raise WrongUsage(f"overlap is a part of the update, 0 to 1, not {stages.overlap:g}")
    if stages.work_s > stages.rollout:
        raise WrongUsage("throughput is generation without its tail: it cannot exceed rollout")
    if stages.rollout + stages.train <= 0:
        raise WrongUsage("give at least --rollout or --train, in seconds")


def _walls(stages: Stages, placement: str) -> tuple[WallCost, ...]:
    whole = composed(stages, placement).step_s
    tail_s = 0.0 if placement == "async" else stages.rollout - stages.work_s
    parts: dict[str, dict[str, float]] = {}
    for stage, wall in RESOURCE_OF.items():
        name = word(stage)
        seconds = stages.work_s if stage is Stage.ROLLOUT else getattr(stages, name, 0.0)
        if seconds:
            parts.setdefault(wall, {})[name] = seconds
    if tail_s:
        parts[TAIL] = {"rollout": tail_s}
    found = [
        WallCost(wall, 1 - composed(stages, placement, less).step_s / whole)
        for wall, less in parts.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.share))


def first_fix(of: Triage) -> First | None:
    """The move against what binds with the largest predicted gain for its effort; None where
    nothing binds."""
    walls, stages = [wall.wall for wall in of.binding], of.stages
    if not walls:
        return None
    seconds = {word(one): s for one in Stage if (s := getattr(stages, word(one), 0.0)) > 0}
    tables: dict[str, object] = {
        "placement": of.placement,
        "stages": seconds,
        "sync": {"overlap": stages.overlap},
    }
    if not math.isnan(stages.throughput):
        tables["rollout"] = {"throughput_s": stages.throughput}
        if of.placement == "async":
            tables["stages"] = {**seconds, "rollout": stages.throughput}
    possible = [m for m in moves() if m.wall in walls and (not m.stage or m.stage in seconds)]
    return first_of(possible, possible, stated(tables, "the stages").workload)


def first_of(predicted: list[Move], others: list[Move], source: Source) -> First | None:
    """The move with the largest predicted gain for its effort; where none gains, the first of the
    others that nothing predicts."""
    ask = predictor(source)
    most = 0.0
    best: First | None = None
    for move, value in ((one, value) for one in predicted for value in one.values):
        try:
            found = ask([(move.lever, value)])
        except RltraceError:
            continue
        gain = (found.goodput_gain.middle - 1) / move.effort
        if found.verdict not in (SLOWER, NO_GAIN) and gain > most:
            lever = f"{move.lever}={value}"
            most, best = gain, First(move.wall, move.move, lever, found, move.risk)
    if best is not None:
        return best
    unknown = (move for move in others if not move.lever)
    return next((First(m.wall, m.move, "", None, m.risk) for m in unknown), None)


# --- a design from four words on a workload: size, output, environment, staleness
# Every wall that these point at is kept, ranked: a large model with agents has both of its walls.

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
    for what, given, known in (
        ("output", output, OUTPUTS),
        ("environment", environment, ENVIRONMENTS),
        ("staleness", staleness, tuple(STALENESS)),
    ):
        if given not in known:
            raise WrongUsage(f"--{what} must be one of {', '.join(known)}, not {given!r}")
    strict = staleness == "strict"
    agentic = output == "agent" or environment == "high"
    pointed_at = (
        agentic,
        parameters >= _GIANT,
        output == "cot",
        _LARGE <= parameters < _GIANT,
    )
    aspects = (
        Aspect(
            ENV_REWARD,
            "a service graph: environments in a pool of their own",
            "isolate environments; log tokens where the engine makes them",
            "transcripts that drift from what was sampled; failures scored as wrong answers",
        ),
        Aspect(
            WEIGHTS,
            "resharding in place on shared devices" if strict else "async with relays",
            "weights in buckets, by RDMA or through relays; never a full copy to each",
            "memory of shared devices" if strict else "stale weights",
        ),
        Aspect(
            TAIL,
            "pipelined within a step" if strict else "bounded async",
            "control the tail: partial rollout, length limits that are logged",
            "length bias: what is dropped is what is long",
        ),
        Aspect(
            WEIGHTS,
            "roles on devices of their own",
            "trace a weight update by its phases",
            "updates that take longer than steps",
        ),
        Aspect(
            ROLLOUT,
            "synchronous and colocated",
            "validate reward and loss; trace where the step goes",
            "tuning before measuring",
        ),
    )
    found = tuple(compress(aspects, (*pointed_at, not any(pointed_at))))
    walls = tuple(aspect.wall for aspect in found)
    if strict:
        placement = COLOCATED
    elif agentic:
        placement = THREE_POOLS
    elif TAIL in walls:
        placement = ASYNC
    else:
        placement = ONE_STEP_OFF if WEIGHTS in walls else COLOCATED
    # A workload of that size on as many H100 as it needs about.
    h100 = gpu("H100")
    count = max(1, math.ceil(_BYTES_EACH * parameters / h100.memory_bytes))
    spec = Spec(
        name="", model=by_size(parameters), gpu=h100, gpus=count, prompts=128, group=8,
        mean_tokens=1000, cap_tokens=8000, lag_bound=STALENESS[staleness], stack=stack,
        environment=Environment(calls=1, latency_s=10) if agentic else Environment(),
    )  # fmt: skip
    return Design(found, placement, choose(spec, placement, walls))
