"""The truth about a synthetic run, counted from its timeline.

The sweep here is the plain form of the definitions in `rltrace.analysis.timeline.stages`: it cuts a
step at every boundary and looks at which stages run in each piece. The fast form is held to it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rltrace
from benchmarks.synthetic.files import PlayedBatch, StepPlan, Timeline, write
from benchmarks.synthetic.timeline import play
from benchmarks.synthetic.workload import Workload
from rltrace.testing.inside.trace import Fate, OpenedRun, Stage, word
from rltrace.testing.run_files import SECOND, Interval

ACTORS = {Stage.ROLLOUT, Stage.ENV, Stage.REWARD}
WEIGHTS = {Stage.SYNC, Stage.SWITCH}


@dataclass(frozen=True)
class StepTruth:
    """One step: seconds by stage name. Exposed seconds (with "wait") and `untraced_s`, which no
    span covers, add up to the step."""

    step: int
    start_ns: int
    end_ns: int
    warmup: bool
    step_s: float
    tau_s: dict[str, float]
    exposed_s: dict[str, float]
    untraced_s: float


@dataclass(frozen=True)
class Truth:
    """What a correct analysis of the run must find. Lag keys are versions; "unknown" is its own."""

    placement: str
    spans: int
    open_spans: int
    gpus: int
    steps: tuple[StepTruth, ...]
    lag_trajectories: dict[str, int]
    lag_tokens: dict[str, int]
    mixed_trajectories: int
    generated_tokens: int
    tokens_by_fate: dict[str, int]
    never_used_tokens: int
    zero_advantage_tokens: int
    useful_tokens: int
    sync_count: int
    sync_bytes: int
    steady_s: float
    steady_useful_tokens: int
    goodput_tokens_per_gpu_s: float


def known_job(path: str | Path, **knobs: Any) -> tuple[OpenedRun, Truth]:
    """A job of known truth: a run with these knobs (fields of `Workload`), written to `path`, and
    what a right analysis of it must find. Equal knobs give equal files.

    Errors: `FileExistsError` where a run is, `TypeError` for a knob that there is not.
    """
    truth = make(Path(path), Workload(**knobs))
    return rltrace.open_run(path), truth


def make(path: Path, load: Workload) -> Truth:
    """Write the run of `load` into the new directory `path`; returns (and stores) its truth.

    Errors: FileExistsError when `path` holds a run already.
    """
    timeline = play(load)
    truth = tell(load, timeline, write(path, load, timeline))
    (path / "truth.json").write_text(json.dumps(asdict(truth), indent=1))
    return truth


def tell(load: Workload, timeline: Timeline, spans: int) -> Truth:
    """Count the truth; `spans` is the number of span rows written."""
    steps = tuple(_step(plan) for plan in timeline.steps)
    last = load.steps - 1
    lag_trajectories: Counter[str] = Counter()
    lag_tokens: Counter[str] = Counter()
    fates: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    mixed = 0
    for batch in timeline.batches:
        used = batch.alive & (batch.used_step <= last)
        trained = used & (batch.fate == Fate.TRAINED)
        useful = trained & _signal(batch)
        which = {
            "generated_tokens": batch.alive,
            "never_used_tokens": batch.alive & (batch.used_step > last),
            "zero_advantage_tokens": trained & ~useful,
            "useful_tokens": useful,
            "steady_useful_tokens": useful & (batch.used_step >= load.warmup_steps),
        }
        tokens.update({name: int(batch.tokens[mine].sum()) for name, mine in which.items()})
        known = trained & (batch.first_version >= 0)
        mixed += int((known & (batch.first_version != batch.step)).sum())
        for code in np.unique(batch.fate[used]):
            fates[word(Fate(code))] += int(batch.tokens[used & (batch.fate == code)].sum())
        lag = np.where(known, batch.used_step - batch.first_version, -1)
        for value in np.unique(lag[trained]):
            key = "unknown" if value < 0 else str(value)
            lag_trajectories[key] += int((trained & (lag == value)).sum())
            lag_tokens[key] += int(batch.tokens[trained & (lag == value)].sum())
    steady_s = (steps[-1].end_ns - steps[load.warmup_steps].start_ns) / SECOND
    per_gpu_s = tokens["steady_useful_tokens"] / (steady_s * load.gpus) if load.gpus else math.nan
    return Truth(
        placement=load.placement,
        spans=spans,
        open_spans=sum(span[1] < 0 for p in timeline.processes for span in p.spans),
        gpus=load.gpus,
        steps=steps,
        lag_trajectories=dict(lag_trajectories),
        lag_tokens=dict(lag_tokens),
        mixed_trajectories=mixed,
        tokens_by_fate=dict(fates),
        sync_count=load.steps,
        sync_bytes=load.sync_bytes,
        steady_s=steady_s,
        goodput_tokens_per_gpu_s=per_gpu_s,
        **tokens,
    )


def _signal(batch: PlayedBatch) -> NDArray[np.bool_]:
    """For each sample: did the verdicts that were reached in its group differ?"""
    differs = np.zeros(len(batch.group), bool)
    for group in np.unique(batch.group):
        mine = batch.group == group
        values = batch.value[mine & batch.alive]
        differs[mine] = len(values) > 1 and values.max() > values.min()
    return differs


def _step(plan: StepPlan) -> StepTruth:
    a, b = plan.window
    stages = [(s, one) for s, intervals in plan.stages.items() for one in _union(intervals)]
    edges = {a, b, *(t for _, interval in stages for t in interval)}
    pieces = []
    tau: Counter[Stage] = Counter()
    for left, right in pairwise(sorted(t for t in edges if a <= t <= b)):
        running = frozenset(s for s, (start, end) in stages if start <= left and right <= end)
        pieces.append((right - left, running))
        tau.update(dict.fromkeys(running, right - left))
    works = [(n, running - {Stage.WAIT} or running) for n, running in pieces]
    exposed = expose(works, b - a)
    return StepTruth(
        step=plan.step,
        start_ns=a,
        end_ns=b,
        warmup=plan.warmup,
        step_s=(b - a) / SECOND,
        tau_s={word(s): v / SECOND for s, v in tau.items()},
        exposed_s={word(s): v / SECOND for s, v in exposed.items()},
        untraced_s=sum(length for length, running in works if not running) / SECOND,
    )


def _union(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def expose(pieces: list[tuple[int, frozenset[Stage]]], window: int) -> dict[Stage, int]:
    """Give each piece to one of the stages in it (rule: `rltrace.analysis.timeline.stages`)."""

    def chain(stage: Stage) -> str:
        if stage is Stage.WAIT:
            return "none"
        return "actors" if stage in ACTORS else "weights" if stage in WEIGHTS else "learner"

    alone: Counter[Stage] = Counter()
    chain_alone: Counter[str] = Counter()
    for length, running in pieces:
        if len(running) == 1:
            alone[next(iter(running))] += length
        chains = {chain(s) for s in running}
        if len(chains) == 1:
            chain_alone[chains.pop()] += length
    exposed = dict.fromkeys({s for _, running in pieces for s in running}, 0)
    order = ["learner", "actors", "weights", "none"]
    for length, running in pieces:
        if not running:
            continue
        there = sorted({chain(s) for s in running}, key=order.index)
        longest = max(there, key=lambda c: chain_alone[c])
        if "learner" in there and chain_alone[longest] < 0.02 * window:
            longest = "learner"
        among = sorted(s for s in running if chain(s) == longest)
        exposed[max(among, key=lambda s: alone[s])] += length
    return exposed
