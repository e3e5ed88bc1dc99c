"""Series of steps with known noise, for judging without a trace."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rltrace.testing.inside.analysis import RunSeries
from rltrace.testing.inside.analysis import metrics as m

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """A job of 1 s steps: generation takes 0.7 of it, training the rest, and verdicts run beside
    both for `hidden_s`. `starts` is how starts of it differ, `noise` how its steps do (log-sd) with
    the correlation `r`; `stalls` is the share of steps that take half as long again; `work` how
    much the steps' work differs, the same in each run where `seed` is set."""

    steps: int = 40
    starts: float = 0.008
    noise: float = 0.03
    r: float = 0.3
    stalls: float = 0.02
    work: float = 0.1
    seed: int | None = 0
    hidden_s: float = 0.5
    slower: float = 1.0
    slower_rollout: float = 1.0
    tokens: float = 1000.0
    signal: float = 0.9
    warm: bool = True


def correlated(random: np.random.Generator, size: int, r: float) -> Floats:
    """An autoregression of order 1 with variance 1."""
    shocks = random.normal(size=size)
    values = np.empty(size)
    last = random.normal()
    for i, shock in enumerate(shocks):
        last = r * last + math.sqrt(1 - r * r) * shock
        values[i] = last
    return values


def run_of(job: Job, number: int) -> RunSeries:
    """The run of that number of the job."""
    random = np.random.default_rng([number, 7])
    plan = random if job.seed is None else np.random.default_rng(job.seed)
    work = np.exp(job.work * plan.normal(size=job.steps))
    noise = job.noise * correlated(random, job.steps, job.r) + job.starts * random.normal()
    pace = np.exp(noise) * np.where(random.random(job.steps) < job.stalls, 1.5, 1.0)
    if job.warm:
        pace[:2] *= (2.5, 1.3)
    rollout = 0.7 * work * pace * job.slower * job.slower_rollout
    train = 0.3 * pace * job.slower
    tokens = job.tokens * work
    columns = {
        m.LENGTH: rollout + train,
        m.STEPS: np.ones(job.steps),
        m.DEVICES: 2 * (rollout + train),
        m.GENERATED: tokens,
        m.SAMPLES: np.full(job.steps, 50.0),
        m.TRAINED: tokens,
        m.USEFUL: tokens * job.signal,
        m.DECIDED: tokens,
        m.EXPOSED + "rollout": rollout,
        m.EXPOSED + "train": train,
        m.BUSY + "rollout": rollout,
        m.BUSY + "train": train,
        m.BUSY + "reward": job.hidden_s * pace,
    }
    return RunSeries(f"run {number}", number, np.arange(job.steps), columns)


def runs_of(job: Job, count: int, first: int) -> list[RunSeries]:
    """Runs of the job from number `first` on."""
    return [run_of(job, first + i) for i in range(count)]
