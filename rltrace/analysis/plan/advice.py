"""What follows from a plan: the first optimization, risks, when to move on, the framework and the
settings to launch it with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rltrace.analysis.lag_priors import prior_for
from rltrace.analysis.order_statistics import longest_of_lognormal
from rltrace.analysis.plan.catalogue import Choice, choose
from rltrace.analysis.plan.engine import LIMIT
from rltrace.analysis.plan.placements import (
    ASYNC,
    COLOCATED,
    ONE_STEP_OFF,
    PARTIAL,
    THREE_POOLS,
    TRAJECTORY,
)
from rltrace.analysis.plan.plan import Plan, Row
from rltrace.analysis.playbook import Move, frameworks, moves, settings_for
from rltrace.analysis.walls.rank import BINDS
from rltrace.analysis.walls.wall import ENV_REWARD, LEARNER, ROLLOUT, TAIL, WEIGHTS
from rltrace.analysis.whatif.predict import NO_GAIN, SLOWER, Prediction, predictor
from rltrace.trace.errors import RltraceError

_NOTICED = 1.03  # times as fast
_SEVERE = 1.5  # times as long with a barrier
_PLACES = {"overlap generation with training", "use all devices in turn",
           "move weights beside generation", "lend idle trainer devices to generation"}  # fmt: skip
"""Moves that are the choice of a placement, which the plan has made."""


@dataclass(frozen=True)
class First:
    """The first optimization: a move of the playbook against the first wall, and what the replay
    predicts of it (None: nothing does)."""

    wall: str
    move: str
    lever: str
    found: Prediction | None
    risk: str


@dataclass(frozen=True)
class Launch:
    """An option of the framework: its value, and why."""

    option: str
    value: Any
    why: str


@dataclass(frozen=True)
class Advice:
    """What a plan comes to. `launch` are settings of the framework, empty where it has none on
    file."""

    choice: Choice
    first: First | None
    risks: tuple[str, ...]
    move_on: tuple[str, ...]
    launch: tuple[Launch, ...]


def advise(found: Plan) -> Advice:
    """The advice on a plan."""
    # Where two chains are even, nothing binds: what would be first beside them counts.
    dearest = found.walls.binding or found.walls.walls[:2]
    walls = tuple(wall.name for wall in dearest)
    choice = choose(found.spec, found.best.name, (*walls, *_avoided(found)))
    return Advice(
        choice=choice,
        first=_first(found, walls),
        risks=tuple(_risks(found)),
        move_on=tuple(_move_on(found)),
        launch=tuple(_launch(found, choice)),
    )


def _avoided(found: Plan) -> tuple[str, ...]:
    """The tail, where the placement is the answer to it: the framework has to be one, too."""
    made = found.parts.rollout
    streams = found.parts.kind.played == "async" or found.best.name == PARTIAL
    severe = made.barrier_s > _SEVERE * made.throughput_s
    return (TAIL,) if streams and severe else ()


def _first(found: Plan, walls: tuple[str, ...]) -> First | None:
    """The move with the largest predicted gain for its effort against a wall that costs a tenth of
    the step; where none gains, one against the first wall that nothing predicts."""
    dear = [wall.name for wall in found.walls.walls if wall.share >= BINDS]
    stages = {cost.stage for cost in found.stages}
    ask = predictor(lambda constants: found.placed.load)
    best: tuple[float, First] | None = None
    for move in _possible(found, dear, stages):
        for value in move.values:
            try:
                one = ask([(move.lever, value)])
            except RltraceError:
                continue
            if one.verdict in (SLOWER, NO_GAIN):
                continue
            gain = (one.goodput_gain.middle - 1) / move.effort
            if gain > max(0.0, best[0] if best else 0.0):
                lever = f"{move.lever}={value}"
                best = gain, First(move.wall, move.move, lever, one, move.risk)
    if best is not None:
        return best[1]
    unpredicted = (m for m in _possible(found, list(walls[:1]), stages) if not m.lever)
    return next((First(m.wall, m.move, "", None, m.risk) for m in unpredicted), None)


def _possible(found: Plan, walls: list[str], stages: set[str]) -> Iterator[Move]:
    """Moves against these walls that are open here: not the choice of a placement, of a stage that
    there is, and with room in the engines' memory."""
    full = found.parts.rollout.engine.because != LIMIT
    for move in moves():
        placed = move.move in _PLACES or move.lever in ("placement", "no_barrier")
        if move.wall not in walls or placed or (move.stage and move.stage not in stages):
            continue
        if not (full and move.lever == "slots"):
            yield move


def _risks(found: Plan) -> Iterator[str]:
    spec, best = found.spec, found.best
    of = found.parts.rollout.lengths
    prior = prior_for("")
    if best.mean_lag > 0:
        yield (
            f"samples lag by {best.mean_lag:.1f} versions on average, up to {max(best.lags)}: "
            f"plain PPO objectives are run at {prior.held} without remark and doubted from "
            f"{prior.doubtful} on ({prior.source}); measure reward at equal GPU-hours"
        )
    if of.cut_share > 0.05:
        yield (
            f"{100 * of.cut_share:.0f} % of the responses are cut at {of.cap:,.0f} tokens: what is "
            "learned is to be short"
        )
    longest = of.longest(spec.samples) / of.mean
    if longest > 4:
        same = longest_of_lognormal(spec.group, of.s)
        yield (
            f"the longest of a batch is {longest:.1f} times the mean (of one prompt's "
            f"{spec.group}: {same:.1f}, if they were unlike): dropping what is late drops what is "
            "long"
        )
    if spec.environment.failures:
        yield (
            f"{100 * spec.environment.failures:g} % of the tool calls fail: a failure that is "
            "scored as a wrong answer is a wrong reward"
        )
    if spec.agentic:
        yield "transcripts tokenized again later differ from what was sampled: keep token ids"
    if found.step_s.high > 1.5 * found.step_s.middle:
        yield "the range is wide: trace a short run of this job and plan with --from-run"
    if spec.multimodal:
        yield "images and audio are not in the costs: their encoders and tokens come on top"


def _move_on(found: Plan) -> Iterator[str]:
    """What has to happen for another design to be better."""
    spec, best = found.spec, found.best
    later = found.needs_lag
    if later is not None:
        gain = best.step_s / later.step_s
        yield (
            f"to {later.name} ({gain:.2f} times faster here) once a run has shown what lag costs: "
            "the reward at equal GPU-hours, not steps an hour"
        )
    faster = [
        row for row in found.rows
        if not row.refused and row.allowed and row.step_s * _NOTICED < best.step_s
    ]  # fmt: skip
    for row in sorted(faster, key=lambda row: row.step_s)[:1]:
        gain = best.step_s / row.step_s
        yield f"to {row.name} when a trace shows the {gain:.2f} times that are predicted for it"
    if best.name in (COLOCATED, PARTIAL):
        yield "to pools of their own when a trace shows generation waiting for tail or tools"
    if found.parts.sync is not None and found.parts.sync.mechanism in ("naive", "bucketed"):
        share = found.parts.exposed_sync_s / best.step_s
        yield (
            f"to relays, changes only or RDMA when moving weights takes over a tenth of a step "
            f"(here {100 * share:.1f} %)"
        )
    yield (
        "to more GPUs only while useful tokens for a dollar do not fall: "
        f"`rltrace plan --sweep gpus={spec.gpus}..{4 * spec.gpus}`"
    )


def _launch(found: Plan, choice: Choice) -> Iterator[Launch]:
    """Options of the framework that make the plan, from the settings on file."""
    names = (choice.framework.adapter, choice.framework.name.lower())
    name = next((one for one in names if one in frameworks()), "")
    if not name:
        return
    told: set[str] = set()
    for what, option in choice.framework.launch.items():
        told.add(option)
        yield Launch(option, _shape(found)[what], "the workload's shape")
    for wall, move, why in _wanted(found):
        key = next((m for m in moves() if (m.wall, m.move) == (wall, move)), None)
        if key is None:
            continue
        made = [s for s in settings_for(name, "", key) if not s.config]
        for setting in made[:1]:
            if setting.option in told:
                continue
            told.add(setting.option)
            yield Launch(setting.option, _value(found, key, setting.option, setting.value), why)
            for option, value in {**setting.needs, **setting.exactly}.items():
                if option not in told:
                    told.add(option)
                    yield Launch(
                        option, _value(found, key, option, value), f"with {setting.option}"
                    )


def _wanted(found: Plan) -> Iterator[tuple[str, str, str]]:
    """Walls and moves of the playbook that the plan's design is made of, and why."""
    best = found.best.name
    if best in (ONE_STEP_OFF, ASYNC, TRAJECTORY, THREE_POOLS):
        yield ROLLOUT, "overlap generation with training", f"the placement is {best}"
        yield ROLLOUT, "more rollout replicas", _split(found.best)
    elif best in (COLOCATED, PARTIAL):
        yield ROLLOUT, "use all devices in turn", f"the placement is {best}"
    if best in (PARTIAL, TRAJECTORY, THREE_POOLS):
        yield TAIL, "partial rollout", "what is not complete waits for the next batch"
    if found.best.mean_lag > 0:
        yield "freshness", "bound the lag", _bound(found)
        yield "freshness", "correct for the lag", "samples are off policy"
    engine = found.parts.rollout.engine
    yield ROLLOUT, "more requests at once", f"{engine.slots:,.0f} sequences fit an engine"
    yield ROLLOUT, "share prefixes", f"{found.spec.group} samples share a prompt"
    yield LEARNER, "dynamic batch", "lengths differ"
    if found.parts.memory.recompute:
        yield LEARNER, "recompute activations", "activations do not fit otherwise"
    if found.parts.memory.offloads:
        yield LEARNER, "offload", "the optimizer does not fit otherwise"
    if found.parts.memory.ways > 1:
        yield LEARNER, "split long sequences", f"over {found.parts.memory.ways} GPUs"
    if found.parts.sync is not None:
        by = {"bucketed": "larger buckets", "relay": "another checkpoint engine",
              "direct": "another transport", "delta": "send what changed"}  # fmt: skip
        if found.parts.sync.mechanism in by:
            yield (
                WEIGHTS,
                by[found.parts.sync.mechanism],
                f"weights travel {found.parts.sync.mechanism}",
            )
    if found.spec.environment.reward_s:
        yield ENV_REWARD, "more reward workers", f"{found.spec.environment.judges} at once"


def _shape(found: Plan) -> dict[str, int]:
    """The figures of a plan by the names that the catalogue's `launch` tables have for them."""
    spec, engine = found.spec, found.parts.rollout.engine
    generating = found.best.devices.get("rollout", spec.gpus)
    return {
        "prompts": spec.prompts,
        "group": spec.group,
        "prompt_tokens": math.ceil(spec.prompt_tokens),
        "response_tokens": math.ceil(spec.cap_tokens),
        "sequence_tokens": math.ceil(spec.prompt_tokens + spec.cap_tokens),
        "engine_gpus": engine.ways,
        "engines": generating // engine.ways,
        "rollout_gpus": generating,
        "nodes": math.ceil(found.best.devices.get("train", spec.gpus) / spec.gpu.node),
        "gpus_per_node": min(spec.gpu.node, spec.gpus),
    }


def _bound(found: Plan) -> str:
    asked, planned = found.spec.lag_bound, found.parts.lag_bound
    if planned < asked:
        return f"{asked:g} versions are allowed; {planned:g} keep the engines full"
    return f"{asked:g} versions are allowed"


def _split(row: Row) -> str:
    counts = ", ".join(f"{count} {pool}" for pool, count in row.devices.items())
    return f"devices: {counts}"


def _value(found: Plan, move: Move, option: str, example: Any) -> Any:
    """The value that the plan says, where the option is one of a kind that it knows; else the
    example of the settings on file."""
    name = option.lower().replace("-", "_")
    engine, spec = found.parts.rollout.engine, found.spec
    generating = found.best.devices.get("rollout", spec.gpus)
    if example == "lag bound":
        return math.ceil(found.parts.lag_bound)
    if name.endswith(
        ("tensor_model_parallel_size", "vllm_tensor_parallel_size", "gpus_per_engine")
    ):
        return engine.ways
    if name.endswith(("max_num_seqs", "sglang_server_concurrency", "max_running_requests")):
        return int(engine.slots)
    if name.endswith(("rollout_num_gpus",)):
        return generating
    if (name.endswith("nnodes") and "rollout" in name) or name.endswith("resources.num_nodes"):
        return max(1, round(generating / spec.gpu.node))
    if isinstance(example, int) and not isinstance(example, bool):
        by_move = {
            "bound the lag": math.ceil(found.parts.lag_bound),
            "split long sequences": found.parts.memory.ways,
        }
        return by_move.get(move.move, example)
    return example
