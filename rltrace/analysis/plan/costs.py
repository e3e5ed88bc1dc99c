"""What each stage of a workload takes on pools of a given size, in closed form.

Generation has two times. With `n` sequences running a token takes `token_s + shared_token_s n`, so
a batch that all engines finish together takes

    token_s x (longest chain of tokens through a slot) + shared_token_s x (tokens of an engine)

which is the barrier time; an engine that always has its slots full takes, for the same tokens,
`(token_s / slots + shared_token_s) x tokens`, the throughput time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from rltrace.analysis.order_statistics import Floats, makespan
from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.engine import Decoding, decoding
from rltrace.analysis.plan.hardware import Gpu
from rltrace.analysis.plan.lengths import Lengths
from rltrace.analysis.plan.spec import Environment, Spec
from rltrace.analysis.plan.training import Training, training
from rltrace.trace.vocabulary import Stage

_GROUPS = 64  # that are drawn
_MOST_PLAYED = 1024  # samples of an engine whose waves are played
_MOST_CALLS = 256  # of a trajectory that are drawn


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


def rollout(spec: Spec, devices: int, constants: PlanConstants, gpu: Gpu | None = None) -> Rollout:
    """Generation on so many GPUs, of the workload's kind unless another is given."""
    of = spec.lengths(constants)
    context = spec.prompt_tokens + of.context
    engine = decoding(
        spec.model, gpu or spec.gpu, constants, context, spec.prompt_tokens, spec.group,
        spec.samples, devices, spec.rollout_ways, spec.slots,
    )  # fmt: skip
    scale = spec.calibrated.get("rollout", 1.0)
    engine = replace(
        engine,
        token_s=engine.token_s * scale,
        shared_token_s=engine.shared_token_s * scale,
        prefill_s=engine.prefill_s * scale,
    )
    engines = devices // engine.ways
    each = spec.samples / engines
    running = min(each, engine.slots)
    waves = each / engine.slots
    longest = of.longest(spec.samples)
    chain = longest if waves <= 1 else max(longest, _chain(of, each, engine.slots))
    tokens = spec.response_tokens / engines
    prefill = engine.prefill_s * spec.prompts / engines
    work = engine.shared_token_s * tokens + prefill
    tail = engine.token_s * chain
    env = spec.environment
    queued = max(1.0, spec.samples / env.workers)
    outside = queued * longest_env_s(env, spec.samples) if spec.agentic else 0.0
    mean_latency = of.mean * engine.iteration_s(running) + env.mean_s
    busy = (
        running * of.mean * engine.iteration_s(running) / mean_latency if spec.agentic else running
    )
    # Tools take no slot: samples of the batches begun meanwhile decode, as far as there are any.
    full = max(1.0, min(running, busy * (1 + max(1.0, spec.lag_bound))))
    return Rollout(
        devices=devices,
        engines=engines,
        engine=engine,
        lengths=of,
        chain_tokens=chain,
        waves=waves,
        running=running,
        barrier_s=max(tail + work, outside + 0.5 * (tail + work)) if outside else tail + work,
        decode_s=tail + work,
        throughput_s=engine.token_s * tokens / full + work,
        untooled_s=engine.token_s * tokens / running + work,
        env_s=env.mean_s,
        decoding_s=of.mean * engine.iteration_s(running),
        env_group_s=longest_env_of_group_s(env, spec.group),
        env_pool_s=env.mean_s * spec.samples / env.workers,
        reward_s=env.reward_s * spec.samples / min(env.judges, spec.samples),
    )


def _chain(of: Lengths, samples: float, slots: float) -> float:
    """Longest chain of tokens through a slot where samples come in waves."""
    played = min(int(samples), _MOST_PLAYED)
    places = max(1, round(slots * played / samples))
    values = of.batch(played, 1, played).ravel()
    return makespan(values.tolist(), places)


@dataclass(frozen=True)
class Learner:
    """The learner's stages on `devices` GPUs, seconds a step, `slower` than `training` says where
    an engine is on the same devices."""

    devices: float
    training: Training
    serial_s: dict[Stage, float]
    slower: float = 1.0

    @property
    def total_s(self) -> float:
        """All stages one after the other."""
        return sum(self.serial_s.values())


def learner(spec: Spec, devices: float, constants: PlanConstants) -> Learner:
    """Training and its passes on so many GPUs."""
    of = spec.lengths(constants)
    found = training(
        spec.model, spec.gpu, devices, constants, spec.trained_tokens, spec.square(of),
        spec.samples, spec.updates, spec.epochs, spec.layout,
    )  # fmt: skip
    scale = spec.calibrated.get("train", 1.0)
    ahead = found.forward_s * spec.calibrated.get("logprob", scale)
    stages = {Stage.TRAIN: found.train_s * scale * (2 if spec.critic else 1)}
    if spec.logprob:
        stages[Stage.LOGPROB] = ahead
    if spec.reference:
        stages[Stage.REFERENCE] = ahead
    if spec.critic:
        stages[Stage.VALUE] = ahead
    return Learner(devices, found, stages)


def beside_an_engine(alone: Learner, constants: PlanConstants) -> Learner:
    """The same on devices that an engine shares: less memory for micro-batches, and offload."""
    slower = 1 / constants["own_devices"]
    serial_s = {stage: seconds * slower for stage, seconds in alone.serial_s.items()}
    return replace(alone, serial_s=serial_s, slower=slower)


def env_seconds(env: Environment, n: int, seed: int = 0) -> Floats:
    """Seconds of tools of `n` trajectories: lognormal calls, failures with their timeouts. Of very
    many calls some stand for all: the sum has the mean of all of them and their deviation."""
    if not env.calls or not env.latency_s:
        return np.zeros(n)
    draw = np.random.default_rng(seed)
    s = math.sqrt(math.log1p(env.variation**2))
    calls = max(1, round(env.calls))
    drawn = min(calls, _MOST_CALLS)
    each = env.latency_s * env.calls / calls
    values = each * np.exp(s * draw.standard_normal((n, drawn)) - s * s / 2)
    if env.failures:
        failed = draw.geometric(1 - env.failures, (n, drawn)) - 1
        values = values + failed * env.patience_s
    found: Floats = values.sum(axis=1)
    if drawn < calls:
        mean = env.mean_s / calls
        found = calls * mean + math.sqrt(calls / drawn) * (found - drawn * mean)
    return found * (env.mean_s / max(1e-12, float(found.mean())))


@lru_cache
def longest_env_of_group_s(env: Environment, group: int) -> float:
    """The longest of the samples of a prompt, on average: the group is complete with it."""
    if not env.calls:
        return 0.0
    return float(env_seconds(env, _GROUPS * group).reshape(_GROUPS, group).max(axis=1).mean())


@lru_cache
def longest_env_s(env: Environment, n: int) -> float:
    """The longest of `n` trajectories' tool times."""
    return float(env_seconds(env, min(n, 4096)).max())
