"""Workloads of samples: who waited for whom, and what is found of engines, judges and tools."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrace
from rltrace.testing.inside.analysis import Constants, predict, replay, room_of, workload_of
from rltrace.testing.inside.analysis import levers_moves as moves
from rltrace.testing.inside.trace import RltraceError, Run, Stage
from rltrace.testing.made import process, rows, run_of, turns
from tests.analysis.whatif.played import of
from tests.analysis.whatif.tooled import Tooled, gain, traced


def test_slots_and_judges_are_found(tmp_path: Path) -> None:
    """Eight samples on two slots, 1 s each, judged one after the other for 0.25 s."""
    begin = [10.0 * step + i // 2 for step in range(4) for i in range(8)]
    judged = [10.0 * step + 4 + 0.25 * i for step in range(4) for i in range(8)]
    ids = list(range(1, 33))
    driver = process("driver", *[(("step", n), 10 * n, 10 * n + 10) for n in range(4)],
                     *[(Stage.TRAIN, 10 * n + 6, 10 * n + 10) for n in range(4)])  # fmt: skip
    engine = rows(
        process("rollout"), "trajectories", start_s=begin, end_s=[b + 1 for b in begin],
        trajectory=ids, group=ids, response_tokens=[5] * 32, first_version=[0] * 32,
    )  # fmt: skip
    judge = rows(
        process("reward"), "rewards", start_s=judged, end_s=[j + 0.25 for j in judged],
        trajectory=ids, value=[1.0] * 32,
    )  # fmt: skip
    run = run_of(tmp_path, driver, engine, judge, settings={"placement": "colocated"})
    load = of(run)
    assert load.engine.slots == pytest.approx(2, rel=0.01)
    assert load.reward_workers == 1
    assert replay(load).step_s == pytest.approx(10, rel=0.02)
    faster = predict(lambda constants: load, [("reward_parallel", "x2")])
    assert faster.gain.middle == pytest.approx(10 / 9, rel=0.01)
    more = predict(lambda constants: load, [("slots", "x2")])
    assert more.gain.middle == pytest.approx(10 / 8, rel=0.02)


def of_queue(path: Path, steps: int = 16) -> Run:
    """Samples go one by one through a queue to two judges, 4 s each, and the learner takes any four
    of them: 8 s a step. It trains for 1 s and then moves weights for 2 s, in which it stands still.
    A sample takes 2 s on either of two engines; they stand still while six samples wait for a
    verdict. Three samples after each other have one group number."""
    count = 4 * steps + 6  # the last six are never judged
    begin = [2.0 * n for n in range(count)]
    judged = [2.0 * n + 14 for n in range(count - 6)]
    used = [8.0 * (n // 4) + 24 for n in range(4 * steps)]
    spans: list[tuple[Any, ...]] = []
    for n in range(steps):
        ready = 8.0 * n + 24
        spans += [(("step", n), ready - 5, ready + 3), (Stage.TRAIN, ready, ready + 1)]
        spans.append((Stage.SYNC, ready + 1, ready + 3))
    learner = rows(
        process("learner", *spans), "uses", time_s=[u + 0.5 for u in used],
        trajectory=list(range(1, 4 * steps + 1)), fate=[0] * 4 * steps,
        version=[n // 4 for n in range(4 * steps)],
    )  # fmt: skip
    engines = []
    for which in (0, 1):
        mine = list(range(which, count, 2))
        engines.append(rows(
            process("rollout", *[(Stage.ROLLOUT, begin[n], begin[n] + 2) for n in mine],
                    rank=which),
            "trajectories", start_s=[begin[n] for n in mine], end_s=[begin[n] + 2 for n in mine],
            trajectory=[n + 1 for n in mine], group=[n // 3 for n in mine],
            response_tokens=[20] * len(mine), first_version=[max(0, n // 4 - 2) for n in mine],
        ))  # fmt: skip
    judge = rows(
        process("reward", *[(Stage.REWARD, j, j + 4, i % 2) for i, j in enumerate(judged)]),
        "rewards", start_s=judged, end_s=[j + 4 for j in judged],
        trajectory=list(range(1, len(judged) + 1)), value=[1.0] * len(judged),
    )  # fmt: skip
    return run_of(path, learner, *engines, judge, settings={"placement": "async"})


def test_a_queue_of_samples_is_replayed_as_it_was(tmp_path: Path) -> None:
    load = of(of_queue(tmp_path))
    assert len(load.batches[0].tokens) == 4
    assert all(len(set(one.group)) == 4 for one in load.batches)  # handed out one by one
    assert {float(x) for one in load.batches for x in one.verdict_s} == {4.0}  # of those judged
    assert load.reward_workers == 2
    assert load.sync.overlap == pytest.approx(0)
    assert load.model_error == pytest.approx(0, abs=0.02)
    assert load.rest_s == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(
    ("moves", "step_s"),
    [
        ([("reward_parallel", "x2")], 4),  # 4 samples, 2 s each on two engines; judges: 4 s, too
        ([("reward_parallel", "x8")], 4),
        ([("reward_parallel", "x8"), ("rollout_workers", "x2")], 3),  # the learner's own 1 + 2 s
    ],
)
def test_what_binds_a_queue_next_is_found(tmp_path: Path, moves: Any, step_s: float) -> None:
    found = predict(workload_of(of_queue(tmp_path)), moves)
    assert found.step_s.middle == pytest.approx(step_s, rel=0.03)


JUDGED_LATE = Tooled(
    decode_s=0.3, tool_s=0, verdict_s=0.12, train_s=0.15, workers=1, batch=8, room=8, ahead=4
)


@pytest.mark.parametrize(("decode_s", "versions"), [(0.3, True), (0.3, False), (0.22, True)])
@pytest.mark.parametrize("lever", ["reward_parallel=x4", "slots=x2"])
def test_generators_that_wait_for_room_are_no_more_once_they_do_not(
    tmp_path: Path, lever: str, decode_s: float, versions: bool
) -> None:
    """Four samples at once in one process, which wait for the judge. Where decoding takes little of
    that time all four seldom run at once, and nobody can tell whether more would."""
    job = replace(JUDGED_LATE, decode_s=decode_s, versions=versions)
    told = decode_s == 0.3
    source = workload_of(traced(tmp_path, job))
    assert source(Constants()).engine.slots == (4 if told else np.inf)
    if not told and lever == "slots=x2":
        with pytest.raises(RltraceError, match="no limit of sequences at once was seen"):
            predict(source, moves([lever]))
        return
    more = lever == "slots=x2"
    true = gain(job, replace(job, places=8) if more else replace(job, judges=4))
    found = predict(source, moves([lever]))
    assert found.gain.low - 0.01 <= true <= found.gain.high + 0.01
    if told:
        assert found.gain.middle == pytest.approx(true, rel=0.04)


def test_versions_that_nobody_tells_bind_no_samples(tmp_path: Path) -> None:
    """With eight places and a learner that takes as long as the judge, the room for samples is what
    keeps both at work."""
    job = replace(JUDGED_LATE, versions=False)
    bound = workload_of(traced(tmp_path, job))(Constants()).lag_bound
    assert 2 <= bound <= job.ahead + 1


def test_samples_that_begin_with_an_update_tell_no_room() -> None:
    """Eight begin with each of forty updates; nobody knows whether a ninth would have waited."""
    begin_s = np.repeat(10.0 * np.arange(40), 8)
    end_s = begin_s + np.tile([8.0, 8.1, 8.2, 8.3, 8.4, 8.5, 8.6, 8.7], 40)
    assert room_of(np.zeros(320, np.int64), begin_s, end_s) == np.inf


def test_a_group_number_that_comes_again_in_each_step_is_another_group(tmp_path: Path) -> None:
    """Two prompts, the same in each step, two samples each, one after the other for 1 s."""
    begin = [10.0 * step + i for step in range(6) for i in range(4)]
    ids = list(range(1, 25))
    driver = process("driver", *[(("step", n), 10 * n, 10 * n + 10) for n in range(6)],
                     *[(Stage.TRAIN, 10 * n + 4, 10 * n + 10) for n in range(6)])  # fmt: skip
    engine = rows(
        process("rollout"), "trajectories", start_s=begin, end_s=[b + 1 for b in begin],
        trajectory=ids, group=[0, 0, 1, 1] * 6, response_tokens=[5] * 24, first_version=[0] * 24,
    )  # fmt: skip
    load = of(run_of(tmp_path, driver, engine, settings={"placement": "colocated"}))
    assert [len(one.tokens) for one in load.batches] == [4] * 6
    assert abs(load.model_error) < 0.03


def test_verdicts_without_a_length_take_the_time_of_their_stage(tmp_path: Path) -> None:
    """Two samples a step, 4 s of generation, 4 s of a reward stage that ends with both verdicts."""
    ids, places = list(range(1, 13)), [n // 2 for n in range(12)]
    spans: list[tuple[Any, ...]] = []
    for n in range(6):
        spans += [(("step", n), 10 * n, 10 * n + 10), (Stage.ROLLOUT, 10 * n, 10 * n + 4)]
        spans += [(Stage.REWARD, 10 * n + 4, 10 * n + 8), (Stage.TRAIN, 10 * n + 8, 10 * n + 10)]
    made = rows(
        process("driver", *spans), "trajectories", start_s=[10.0 * n for n in places],
        end_s=[10.0 * n + 4 for n in places], trajectory=ids, group=places,
        response_tokens=[5] * 12, first_version=places,
    )  # fmt: skip
    made = rows(
        made, "rewards", start_s=[10.0 * n + 8 for n in places],
        end_s=[10.0 * n + 8 for n in places], trajectory=ids, value=[1.0] * 12,
    )  # fmt: skip
    run = run_of(tmp_path, made, settings={"placement": "colocated"})
    assert of(run).model_error == pytest.approx(0, abs=0.01)
    found = predict(workload_of(run), [("reward_latency", "0.5")])
    assert found.step_s.middle == pytest.approx(8, rel=0.01)


def test_samples_of_one_process_that_took_turns_take_turns_with_their_tools(tmp_path: Path) -> None:
    """Three samples a step, one after the other: 1 s of generation, 4 s of a tool, 1 s more."""
    begin = [20.0 * n + 6 * i for n in range(6) for i in range(3)]
    spans: list[tuple[Any, ...]] = [(Stage.ENV, b + 1, b + 5) for b in begin]
    for n in range(6):
        spans += [(("step", n), 20 * n, 20 * n + 20), (Stage.ROLLOUT, 20 * n, 20 * n + 18)]
        spans.append((Stage.TRAIN, 20 * n + 18, 20 * n + 20))
    made = rows(
        process("driver", *spans), "trajectories", start_s=begin, end_s=[b + 6 for b in begin],
        trajectory=list(range(1, 19)), group=[n // 3 for n in range(18)],
        response_tokens=[10] * 18, env_ns=[4 * 10**9] * 18,
        first_version=[n // 3 for n in range(18)],
    )  # fmt: skip
    run = run_of(tmp_path, made, settings={"placement": "colocated"})
    assert of(run).model_error == pytest.approx(0, abs=0.01)
    found = predict(workload_of(run), [("env_latency", "0.5")])
    assert found.step_s.middle == pytest.approx(14, rel=0.01)


def test_a_learner_that_stands_still_with_its_samples_there_is_not_faster_in_a_replay(
    tmp_path: Path,
) -> None:
    """A step of 10 s trains for 6 s, on two samples that ended long before, in 2 s."""
    ids, places = list(range(1, 25)), [n // 2 for n in range(24)]
    learner = process("learner", *[(("step", n), 10 * n, 10 * n + 10) for n in range(12)],
                      *[(Stage.TRAIN, 10 * n + 4, 10 * n + 10) for n in range(12)])  # fmt: skip
    used = [n for n in places if n + 2 < 12]
    learner = rows(
        learner, "uses", time_s=[10.0 * n + 25 for n in used],
        trajectory=ids[: len(used)], step=[n + 2 for n in used], version=[n + 2 for n in used],
        fate=[0] * len(used), tokens=[20] * len(used),
    )  # fmt: skip
    engine = rows(
        process("rollout", *[(Stage.ROLLOUT, 10 * n, 10 * n + 2) for n in range(12)]),
        "trajectories", start_s=[10.0 * n for n in places], end_s=[10.0 * n + 2 for n in places],
        trajectory=ids, group=places, response_tokens=[20] * 24, first_version=places,
    )  # fmt: skip
    run = run_of(tmp_path, learner, engine, settings={"placement": "async"})
    assert of(run).model_error == pytest.approx(0, abs=0.01)
    found = predict(workload_of(run), [("train_speed", "2")])
    assert found.step_s.middle == pytest.approx(7, rel=0.02)


@pytest.mark.parametrize(("placement", "bound"), [("async", 5), ("disaggregated", 1)])
def test_a_stated_bound_is_the_bound_though_no_sample_was_so_late(
    tmp_path: Path, placement: str, bound: float
) -> None:
    """Of a job in which no sample may be late it bounds nothing."""
    driver = process("driver", *turns(6, 6, 6))
    ids = [1, 2, 3]
    made = rows(
        driver, "trajectories", start_s=[0.0, 10.0, 20.0], end_s=[6.0, 16.0, 26.0],
        trajectory=ids, group=ids, response_tokens=[5] * 3, first_version=[0] * 3,
    )  # fmt: skip
    run_of(tmp_path, made, settings={"placement": placement})
    facts_file = next((tmp_path / "run/process").glob("*.json"))
    facts = json.loads(facts_file.read_text()) | {"settings": {"max_lag": 5}}
    facts_file.write_text(json.dumps(facts))
    assert of(rltrace.open_run(tmp_path / "run")).lag_bound == bound


def test_the_first_token_of_a_response_ends_its_prefill(tmp_path: Path) -> None:
    """Tokens come every 0.5 s, the first 0.5 s after the start."""
    begin, ids = [10.0 * step for step in range(4)], [1, 2, 3, 4]
    driver = process("driver", *[(("step", n), 10 * n, 10 * n + 10) for n in range(4)],
                     *[(Stage.TRAIN, 10 * n + 6, 10 * n + 10) for n in range(4)])  # fmt: skip
    engine = rows(
        process("rollout"), "trajectories", start_s=begin, first_token_s=[b + 0.5 for b in begin],
        end_s=[b + 5 for b in begin], trajectory=ids, group=ids, response_tokens=[10] * 4,
    )  # fmt: skip
    load = of(run_of(tmp_path, driver, engine, settings={"placement": "colocated"}))
    assert load.engine.token_s == pytest.approx(0.5)
    assert load.model_error == pytest.approx(0, abs=1e-3)


def test_lengths_that_change_as_the_policy_learns_are_all_played(tmp_path: Path) -> None:
    steps, each = 40, 4
    tokens = [10 + step for step in range(steps) for _ in range(each)]
    begin = [10.0 * step for step in range(steps) for _ in range(each)]
    ids = list(range(1, len(tokens) + 1))
    driver = process("driver", *[(("step", n), 10 * n, 10 * n + 10) for n in range(steps)],
                     *[(Stage.TRAIN, 10 * n + 6, 10 * n + 10) for n in range(steps)])  # fmt: skip
    engine = rows(
        process("rollout"), "trajectories", start_s=begin, trajectory=ids, group=ids,
        end_s=[b + 0.1 * n for b, n in zip(begin, tokens, strict=True)], response_tokens=tokens,
    )  # fmt: skip
    load = of(run_of(tmp_path, driver, engine, settings={"placement": "colocated"}))
    assert len(load.batches) == steps
    played = sum(batch.tokens.mean() for batch in load.batches) / len(load.batches)
    assert played == pytest.approx(sum(tokens) / len(tokens), rel=0.02)
    assert load.engine.token_s == pytest.approx(0.1, rel=0.01)
