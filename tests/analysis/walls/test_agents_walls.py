"""Agents in one loop: each takes turns of generation and tools and is judged, many at once."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.testing.inside.analysis import ENV_REWARD, LIKELY, ROLLOUT, TAIL, Summary
from rltrace.testing.inside.trace import Fate, Finish, Stage
from rltrace.testing.made import process, rows
from tests.analysis.walls.walled import summary_of, walls_of

STEPS = 12
SAMPLES = 16
TRAIN_S, SYNC_S = 4.0, 1.0


@dataclass(frozen=True)
class Job:
    """Mean seconds of a turn, of its tool and of a verdict; `places` at the engine."""

    gen_s: float
    tool_s: float
    verdict_s: float
    turns: int = 3
    places: int = SAMPLES


@dataclass
class Sample:
    """What a sample did: `(stage, start, end)`, and its verdict from `end_s` on."""

    turns: list[tuple[Stage, float, float]]
    tools_s: float
    end_s: float = 0.0


def played(job: Job, draws: Any) -> list[Sample]:
    """The samples of a step that starts at 0. An engine with few places serves who came first, and
    who waits there is in no stage."""
    free = [0.0] * job.places
    found = [Sample([], 0.0) for _ in range(SAMPLES)]
    line = [(0.1 * i, 0, i) for i in range(SAMPLES)]
    while line:
        ready_s, turn, i = heapq.heappop(line)
        begin_s = max(ready_s, heapq.heappop(free))
        end_s = begin_s + job.gen_s * draws[0, turn, i]
        heapq.heappush(free, end_s)
        found[i].turns.append((Stage.ROLLOUT, begin_s, end_s))
        found[i].end_s = end_s
        if turn + 1 < job.turns:
            back_s = end_s + job.tool_s * draws[1, turn, i]
            found[i].turns.append((Stage.ENV, end_s, back_s))
            found[i].tools_s += back_s - end_s
            heapq.heappush(line, (back_s, turn + 1, i))
    return found


def draws_of(job: Job) -> list[Any]:
    """Lognormal, by step: `[generation or tool, turn, sample]`."""
    rng = np.random.default_rng(3)
    return [np.minimum(3, rng.lognormal(0, 0.5, (2, job.turns, SAMPLES))) for _ in range(STEPS)]


def length_s(job: Job) -> float:
    """Seconds of all steps."""
    ends_s = [max(one.end_s for one in played(job, draws)) for draws in draws_of(job)]
    return sum(ends_s) + STEPS * (job.verdict_s + TRAIN_S + SYNC_S)


def truth(job: Job) -> dict[str, float]:
    """What generation, and tools with verdicts, really cost: of the steps played without them."""
    without = {
        ROLLOUT: replace(job, gen_s=0.0),
        ENV_REWARD: replace(job, tool_s=0.0, verdict_s=0.0),
    }
    return {wall: 1 - length_s(one) / length_s(job) for wall, one in without.items()}


def traced(path: Path, job: Job) -> Summary:
    """The summary of its run, one process with a lane for each sample."""
    spans: list[tuple[Any, ...]] = []
    samples: list[tuple[int, float, float, float]] = []
    now = 0.0
    for n, draws in enumerate(draws_of(job)):
        found = played(job, draws)
        for i, one in enumerate(found):
            spans += [(stage, now + a, now + b, i) for stage, a, b in one.turns if b > a]
            verdict = (now + one.end_s, now + one.end_s + job.verdict_s)
            spans.append((Stage.REWARD, *verdict, i))
            samples.append((n, now + one.turns[0][1], verdict[0], one.tools_s))
        start, now = now, now + max(one.end_s for one in found) + job.verdict_s
        spans.append((Stage.TRAIN, now, now + TRAIN_S))
        spans.append((Stage.SYNC, now + TRAIN_S, now + TRAIN_S + SYNC_S))
        now += TRAIN_S + SYNC_S
        spans.append((("step", n), start, now))
    ends_s = {n: end for (_, n), _, end, *_ in (s for s in spans if isinstance(s[0], tuple))}
    made = process("driver", *spans)
    ids = {"trajectory": list(range(1, len(samples) + 1))}
    steps = [n for n, *_ in samples]
    tokens = [max(2, round(10 * (end - start - tools))) for _, start, end, tools in samples]
    rows(
        made,
        "trajectories",
        start_s=[start for _, start, _, _ in samples],
        end_s=[end for _, _, end, _ in samples],
        env_ns=[round(1e9 * tools) for *_, tools in samples],
        group=[i // 4 + 1 for i in range(len(samples))],
        first_version=steps,
        last_version=steps,
        response_tokens=tokens,
        finish=[int(Finish.STOP)] * len(samples),
        **ids,
    )
    ends = [end for _, _, end, _ in samples]
    rows(
        made, "rewards", start_s=ends, end_s=[end + job.verdict_s for end in ends],
        value=[float(i % 2) for i in range(len(samples))], outcome=[0] * len(samples), **ids,
    )  # fmt: skip
    rows(
        made, "uses", time_s=[ends_s[n] - SYNC_S - 0.1 for n in steps], step=steps, version=steps,
        fate=[int(Fate.TRAINED)] * len(samples), tokens=tokens, **ids,
    )  # fmt: skip
    return summary_of(path, made)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(Job(gen_s=2, tool_s=6, verdict_s=1), id="tools"),
        pytest.param(Job(gen_s=3, tool_s=0, verdict_s=12), id="verdicts"),
        pytest.param(Job(gen_s=6, tool_s=6, verdict_s=1, turns=2, places=4), id="few places"),
    ],
)
def test_a_cost_is_held_by_its_interval_and_a_wide_one_is_weak(tmp_path: Path, job: Job) -> None:
    found = traced(tmp_path, job)
    walls, true = walls_of(found), truth(job)
    tools = walls[ENV_REWARD]
    assert tools.cost.low - 0.01 <= true[ENV_REWARD] <= tools.cost.high + 0.01
    tail, decoding = walls[TAIL], walls[ROLLOUT]
    low, high = (getattr(decoding.cost, b) + getattr(tail.cost, b) for b in ("low", "high"))
    assert low <= true[ROLLOUT] <= high
    generation = decoding.cost.share + tail.cost.share
    assert abs(generation - true[ROLLOUT]) < 0.1 or decoding.confidence != LIKELY
    assert abs(tools.cost.share - true[ENV_REWARD]) < 0.1 or tools.confidence != LIKELY
    dearest = max(true, key=lambda name: true[name])
    assert dearest in {wall.name for wall in found.verdict.binding}


def test_generation_beside_verdicts_has_its_part(tmp_path: Path) -> None:
    """Verdicts are longer than generation in each step, so the exposed rule had them take all the
    time in which both ran; without generation steps would be shorter by more than without them."""
    job = Job(gen_s=3, tool_s=0, verdict_s=12)
    found = traced(tmp_path, job)
    walls, true = walls_of(found), truth(job)
    assert true[ROLLOUT] > true[ENV_REWARD]
    generation = walls[ROLLOUT].cost.share + walls[TAIL].cost.share
    assert generation == pytest.approx(true[ROLLOUT], abs=0.06)
    assert walls[ENV_REWARD].cost.share == pytest.approx(true[ENV_REWARD], abs=0.02)
