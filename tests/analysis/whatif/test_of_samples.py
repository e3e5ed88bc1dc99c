"""Workloads of samples: who waited for whom, and what is found of engines, judges and tools; and
predictions held against the same jobs played with the change: jobs whose samples call tools, and
jobs that send weights while they generate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.testing.handmade_runs import process, rows, run_of, stating, turns
from rltrace.testing.inside.analysis import (
    AT_ONCE,
    GOES_ON,
    Constants,
    OffTheRun,
    Prediction,
    places_of,
    predict,
    replay,
    workload_of,
)
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import RltraceError, Stage
from rltrace.testing.run_files import Process
from tests.analysis.walls.queued import ENDLESS, Queued, gain, of_own_loop, processes, traced
from tests.analysis.walls.walled import in_steps
from tests.analysis.whatif.played import batch, of, workload

COLOCATED = {"placement": "colocated"}


def sampled(made: Process, begin_s: list[float], length_s: Any, **columns: Any) -> Process:
    """Samples that begin then, and take so long; a column is a list, or one value for all."""
    count = len(begin_s)
    ids = list(range(1, count + 1))
    columns = {"trajectory": ids, "group": ids, "length_s": length_s, **columns}
    many = {name: one if isinstance(one, list) else [one] * count for name, one in columns.items()}
    lengths_s = many.pop("length_s")
    end_s = [begin + length for begin, length in zip(begin_s, lengths_s, strict=True)]
    return rows(made, "trajectories", start_s=begin_s, end_s=end_s, **many)


def judged(made: Process, begin_s: list[float], length_s: float) -> Process:
    """Verdicts on samples 1, 2, ... that begin then, and take so long."""
    end_s = [begin + length_s for begin in begin_s]
    ids = list(range(1, len(begin_s) + 1))
    return rows(
        made, "rewards", start_s=begin_s, end_s=end_s, trajectory=ids, value=[1.0] * len(ids)
    )


def driver(train: tuple[float, float], count: int, *more: tuple[Any, ...]) -> Process:
    """Steps of 10 s with training from then to then."""
    steps = in_steps(10, (("step", 0), 0, 10), (Stage.TRAIN, *train), *more, count=count)
    return process("driver", *steps)


def test_slots_and_judges_are_found(tmp_path: Path) -> None:
    """Eight samples on two slots, 1 s each, judged one after the other for 0.25 s."""
    begin = [10.0 * step + i // 2 for step in range(4) for i in range(8)]
    verdicts = [10.0 * step + 4 + 0.25 * i for step in range(4) for i in range(8)]
    engine = sampled(process("rollout"), begin, 1.0, response_tokens=5, first_version=0)
    judge = judged(process("reward"), verdicts, 0.25)
    load = of(run_of(tmp_path, driver((6, 10), 4), engine, judge, settings=COLOCATED))
    assert load.engine.slots == pytest.approx(2, rel=0.01)
    assert load.reward_workers == 1
    assert replay(load).step_s == pytest.approx(10, rel=0.02)
    faster = predict(lambda constants: load, [("reward_parallel", "x2")])
    assert faster.gain.value == pytest.approx(10 / 9, rel=0.01)
    more = predict(lambda constants: load, [("slots", "x2")])
    assert more.gain.value == pytest.approx(10 / 8, rel=0.02)


@pytest.mark.parametrize(("items", "step_s"), [(4, 9.0), (1, 8.5)])
def test_the_samples_of_a_call_share_its_judge(tmp_path: Path, items: int, step_s: float) -> None:
    """Eight verdicts one by one, 0.25 s each, in calls of four samples, or of one: four judges."""
    begin = [10.0 * step for step in range(6) for _ in range(8)]
    groups = [n // 4 for n in range(len(begin))]
    engine = sampled(
        process("rollout"), begin, 4.0, group=groups, response_tokens=5, first_version=0
    )
    asked = [one + 4 + 0.25 * (n % 8) for n, one in enumerate(begin)]
    calls = [(Stage.REWARD, one, one + 0.25 * items) for one in asked[::items]]
    judge = judged(process("reward", *calls), asked, 0.25)
    judge.spans = [(*made[:-1], items) for made in judge.spans]
    run = run_of(tmp_path, driver((6, 10), 6), engine, judge, settings=COLOCATED)
    found = predict(workload_of(run), [("reward_parallel", "x4")])
    assert found.step_s.value == pytest.approx(step_s, rel=0.02)


@pytest.mark.parametrize(("busy_s", "judges", "step_s"), [(0.5, 1, 9.0), (0.1, 4, 10.0)])
def test_verdicts_that_wait_for_a_busy_judge_are_short_ones(
    tmp_path: Path, busy_s: float, judges: int, step_s: float
) -> None:
    """Four verdicts are asked for at once and come 0.5 s apart. The reward function's own spans
    fill that time, or a part of it: then somebody else makes the verdicts."""
    begin = [10.0 * step for step in range(6) for _ in range(4)]
    engine = sampled(process("rollout"), begin, 4.0, response_tokens=5, first_version=0)
    asked = [one + 4 for one in begin]
    ends = [one + 0.5 * (1 + n % 4) for n, one in enumerate(asked)]
    judge = process("reward", *[(Stage.REWARD, end - busy_s, end) for end in ends])
    ids = list(range(1, len(asked) + 1))
    rows(judge, "rewards", start_s=asked, end_s=ends, trajectory=ids, value=[1.0] * len(ids))
    run = run_of(tmp_path, driver((6, 10), 6), engine, judge, settings=COLOCATED)
    assert of(run).reward_workers == judges
    found = predict(workload_of(run), [("reward_parallel", "x2")])
    assert found.step_s.value == pytest.approx(step_s, rel=0.02)


def test_unfinished_samples_that_are_kept_hide_no_verdicts_of_whole_batches(
    tmp_path: Path,
) -> None:
    """Four samples a step, all of 3 s, then a second of verdict each, which a batch waits for."""
    begin = [10.0 * step for step in range(6) for _ in range(4)]
    engine = sampled(process("rollout"), begin, 3.0, response_tokens=5, first_version=0)
    asked = [one + 3 + n % 4 for n, one in enumerate(begin)]
    judge = judged(process("reward"), asked, 1.0)
    load = of(run_of(tmp_path, driver((7, 10), 6), engine, judge, settings=COLOCATED))
    assert load.scoring == "batch"
    found = predict(lambda constants: load, [("partial_rollout", "1.5")])
    assert found.gain.value == pytest.approx(1, abs=0.01)
    both = predict(lambda constants: load, [("partial_rollout", "1.5"), ("reward_latency", "0.5")])
    assert both.step_s.value == pytest.approx(8, rel=0.01)


def of_queue(path: Path, steps: int = 16) -> Run:
    """Samples go one by one through a queue to two judges, 4 s each, and the learner takes any four
    of them: 8 s a step. It trains for 1 s and then moves weights for 2 s, in which it stands still.
    A sample takes 2 s on either of two engines; they stand still while six samples wait for a
    verdict. Three samples after each other have one group number."""
    count = 4 * steps + 6  # the last six are never judged
    begin = [2.0 * n for n in range(count)]
    verdicts = [2.0 * n + 14 for n in range(count - 6)]
    used = [8.0 * (n // 4) + 24 for n in range(4 * steps)]
    own = in_steps(
        8, (("step", 0), 19, 27), (Stage.TRAIN, 24, 25), (Stage.SYNC, 25, 27), count=steps
    )
    learner = rows(
        process("learner", *own), "uses", time_s=[u + 0.5 for u in used],
        trajectory=list(range(1, 4 * steps + 1)), fate=[0] * 4 * steps,
        version=[n // 4 for n in range(4 * steps)],
    )  # fmt: skip
    engines = []
    for which in (0, 1):
        mine = list(range(which, count, 2))
        spans = [(Stage.ROLLOUT, begin[n], begin[n] + 2) for n in mine]
        engines.append(sampled(
            process("rollout", *spans, rank=which), [begin[n] for n in mine], 2.0,
            trajectory=[n + 1 for n in mine], group=[n // 3 for n in mine], response_tokens=20,
            first_version=[max(0, n // 4 - 2) for n in mine],
        ))  # fmt: skip
    spans = [(Stage.REWARD, j, j + 4, i % 2) for i, j in enumerate(verdicts)]
    judge = judged(process("reward", *spans), verdicts, 4)
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
    assert found.step_s.value == pytest.approx(step_s, rel=0.03)


JUDGED_LATE = Queued(
    generate_s=0.3, judge_s=0.12, train_s=0.15, sync_s=0.01, generators=1, at_once=4, judges=1,
    room=8, ahead=4, steps=30, jitter=0.5,
)  # fmt: skip


@pytest.mark.parametrize(("generate_s", "versions"), [(0.3, True), (0.3, False), (0.22, True)])
def test_generators_that_wait_for_room_may_be_more_once_they_do_not(
    tmp_path: Path, generate_s: float, versions: bool
) -> None:
    """Four samples at once in one process, which wait for the judge: nobody can tell whether more
    would run, and the range has both."""
    job = replace(JUDGED_LATE, generate_s=generate_s, versions=versions)
    source = workload_of(traced(tmp_path, job))
    load = source(Constants())
    assert load.engine.slots == np.inf
    assert 2 <= load.lag_bound <= job.ahead + 1  # versions that nobody tells bind no samples
    with pytest.raises(RltraceError, match="no limit of sequences at once was seen"):
        predict(source, [("slots", "x2")])
    found = predict(source, [("reward_parallel", "x4")])
    assert found.gain.low - 0.01 <= gain(job, judges=4) <= found.gain.high + 0.01


def test_a_group_number_that_comes_again_in_each_step_is_another_group(tmp_path: Path) -> None:
    """Two prompts, the same in each step, two samples each, one after the other for 1 s."""
    begin = [10.0 * step + i for step in range(6) for i in range(4)]
    engine = sampled(
        process("rollout"), begin, 1.0, group=[0, 0, 1, 1] * 6, response_tokens=5, first_version=0
    )
    load = of(run_of(tmp_path, driver((4, 10), 6), engine, settings=COLOCATED))
    assert [len(one.tokens) for one in load.batches] == [4] * 6
    assert abs(load.model_error) < 0.03


def test_verdicts_without_a_length_take_the_time_of_their_stage(tmp_path: Path) -> None:
    """Two samples a step, 4 s of generation, 4 s of a reward stage that ends with both verdicts."""
    places = [n // 2 for n in range(12)]
    made = driver((8, 10), 6, (Stage.ROLLOUT, 0, 4), (Stage.REWARD, 4, 8))
    sampled(made, [10.0 * n for n in places], 4.0, group=places, response_tokens=5,
            first_version=places)  # fmt: skip
    run = run_of(tmp_path, judged(made, [10.0 * n + 8 for n in places], 0), settings=COLOCATED)
    assert of(run).model_error == pytest.approx(0, abs=0.01)
    found = predict(workload_of(run), [("reward_latency", "0.5")])
    assert found.step_s.value == pytest.approx(8, rel=0.01)


def test_samples_of_one_process_that_took_turns_take_turns_with_their_tools(tmp_path: Path) -> None:
    """Three samples a step, one after the other: 1 s of generation, 4 s of a tool, 1 s more."""
    begin = [20.0 * n + 6 * i for n in range(6) for i in range(3)]
    steps = in_steps(
        20, (("step", 0), 0, 20), (Stage.ROLLOUT, 0, 18), (Stage.TRAIN, 18, 20),
        *((Stage.ENV, 6 * i + 1, 6 * i + 5) for i in range(3)), count=6,
    )  # fmt: skip
    places = [n // 3 for n in range(18)]
    made = sampled(
        process("driver", *steps), begin, 6.0, group=places, response_tokens=10,
        env_ns=4 * 10**9, first_version=places,
    )  # fmt: skip
    run = run_of(tmp_path, made, settings=COLOCATED)
    assert of(run).model_error == pytest.approx(0, abs=0.01)
    found = predict(workload_of(run), [("env_latency", "0.5")])
    assert found.step_s.value == pytest.approx(14, rel=0.01)


@pytest.mark.parametrize(("placement", "bound"), [("async", 5), ("disaggregated", 1)])
def test_a_stated_bound_is_the_bound_though_no_sample_was_so_late(
    tmp_path: Path, placement: str, bound: float
) -> None:
    """Of a job in which no sample may be late it bounds nothing."""
    made = sampled(process("driver", *turns(6, 6, 6)), [0.0, 10.0, 20.0], 6.0, response_tokens=5,
                   first_version=0)  # fmt: skip
    run = run_of(tmp_path, made, settings={"placement": placement})
    assert of(stating(run, {"settings": {"max_lag": 5}})).lag_bound == bound


def test_the_first_token_of_a_response_ends_its_prefill(tmp_path: Path) -> None:
    """Tokens come every 0.5 s, the first 0.5 s after the start."""
    begin = [10.0 * step for step in range(4)]
    first = {"first_token_s": [b + 0.5 for b in begin]}
    engine = sampled(process("rollout"), begin, 5.0, response_tokens=10, **first)
    load = of(run_of(tmp_path, driver((6, 10), 4), engine, settings=COLOCATED))
    assert load.engine.token_s == pytest.approx(0.5)
    assert load.model_error == pytest.approx(0, abs=1e-3)


def test_what_comes_before_the_first_token_takes_its_time(tmp_path: Path) -> None:
    """Two samples in turns, of 1.5 s of prefill and 1.5 s for five tokens."""
    begin = [10.0 * step + 3 * i for step in range(4) for i in range(2)]
    for waits_s in (0.0, 3.0):  # for its place
        starts = [b - waits_s * (i % 2) for i, b in enumerate(begin)]
        lengths = [3.0 + waits_s * (i % 2) for i in range(len(begin))]
        first = {"first_token_s": [b + 1.5 for b in begin]}
        engine = sampled(process("rollout"), starts, lengths, response_tokens=5, **first)
        made = run_of(tmp_path / str(waits_s), driver((6, 10), 4), engine, settings=COLOCATED)
        load = of(made)
        assert load.engine.token_s == pytest.approx(0.6)
        assert load.model_error == pytest.approx(0, abs=1e-3)


def test_lengths_that_change_as_the_policy_learns_are_all_played(tmp_path: Path) -> None:
    steps, each = 40, 4
    tokens = [10 + step for step in range(steps) for _ in range(each)]
    begin = [10.0 * step for step in range(steps) for _ in range(each)]
    lengths_s = [0.1 * n for n in tokens]
    engine = sampled(process("rollout"), begin, lengths_s, response_tokens=tokens)
    load = of(run_of(tmp_path, driver((6, 10), steps), engine, settings=COLOCATED))
    assert len(load.batches) == steps
    played = sum(batch.tokens.mean() for batch in load.batches) / len(load.batches)
    assert played == pytest.approx(sum(tokens) / len(tokens), rel=0.02)
    assert load.engine.token_s == pytest.approx(0.1, rel=0.01)


KEEPS = Queued(
    generate_s=0.2, tool_s=0.6, judge_s=0.01, train_s=0.2, sync_s=0.01, at_once=4, judges=1,
    room=ENDLESS, batch=16, ahead=2, steps=30, jitter=0.5,
)  # fmt: skip
GIVES = replace(KEEPS, keeps=False)
KEEPING = {
    "several places": KEEPS,
    "one place": replace(KEEPS, at_once=1, generators=8),
    "one worker of many places": replace(KEEPS, at_once=8, generators=1),
    "tools at the end, of all lengths": replace(KEEPS, before=1.0, tool_jitter=0.9),
    "short tools": replace(KEEPS, tool_s=0.1),
    "verdicts bind": replace(KEEPS, judge_s=0.12),
    "the learner binds": replace(KEEPS, train_s=2.0),
    "on policy": replace(KEEPS, ahead=0, at_once=3),
}
GIVING = {
    "several places": GIVES,
    "one place": replace(GIVES, at_once=1),
    "tools at the end": replace(GIVES, before=1.0),
    "on policy": replace(GIVES, at_once=2, ahead=0),
    "no limit": replace(GIVES, at_once=1000),
    "on policy, no limit": replace(GIVES, at_once=1000, ahead=0),
}


def holds(found: Prediction, true: float) -> None:
    """The range has the true gain, to what a short run scatters by."""
    assert found.gain.low - 0.02 <= true <= found.gain.high + 0.02, (found.gain, true)


@pytest.mark.parametrize("name", KEEPING)
def test_samples_that_keep_their_places_are_replayed_so(tmp_path: Path, name: str) -> None:
    job = KEEPING[name]
    source = workload_of(traced(tmp_path, job))
    load = source(Constants())
    assert (load.engine.slots, load.engine.tools_hold) == (job.at_once, True)
    assert load.model_error == pytest.approx(0, abs=0.03)
    true = gain(job, tool_s=job.tool_s / 2)
    found = predict(source, [("env_latency", "0.5")])
    holds(found, true)
    assert found.gain.value == pytest.approx(true, rel=0.05)
    fastest = gain(job, generate_s=1e-6)
    assert predict(source, [("speculative", "1.6")]).gain.value <= fastest + 0.02


@pytest.mark.parametrize("name", GIVING)
def test_places_that_others_have_meanwhile_are_not_taken_to_be_kept(
    tmp_path: Path, name: str
) -> None:
    """Of which only those that run have one: which wait after their tool looks the same."""
    job = GIVING[name]
    source = workload_of(traced(tmp_path, job))
    assert not source(Constants()).engine.tools_hold
    for lever in ("rollout_workers", "slots") if job.at_once < 1000 and job.ahead else ():
        with pytest.raises(RltraceError, match=f"{lever} cannot be moved here"):
            predict(source, [(lever, "x2")])
    try:
        found = predict(source, [("env_latency", "0.5")])
    except OffTheRun:
        return
    holds(found, gain(job, tool_s=job.tool_s / 2))


def test_more_places_gain_what_samples_that_keep_them_waited_for(tmp_path: Path) -> None:
    job = replace(KEEPS, ahead=0)
    found = predict(workload_of(traced(tmp_path, job)), [("slots", "x2")])
    holds(found, gain(job, at_once=2 * job.at_once))
    assert any("keep their places" in one for one in found.rests_on)


def test_where_it_cannot_be_told_whether_places_are_kept_nothing_is_predicted() -> None:
    """A worker that has two samples at once, and then four: each begins as another one ends, though
    four were there at once."""
    begin_s = np.concatenate([np.arange(60) / 2, 30 + np.arange(90) / 4])
    _, sure = places_of(np.zeros(150, np.int64), begin_s, begin_s + 1)
    assert not sure
    unsure = workload(batch([4.0] * 4, env_s=9), steps=9, untold="who has a place")
    with pytest.raises(OffTheRun, match="who has a place is not known"):
        predict(lambda constants: unsure, [("env_latency", "0.5")])


TOLD = Queued(generate_s=1.5, sync_s=3, at_once=2)
UNTOLD = Queued(generate_s=6, generators=1, at_once=2, sync_s=1.5, batch=1, room=4, steps=14)


@pytest.mark.parametrize("pauses", [False, True], ids=["goes on", "stands still"])
@pytest.mark.parametrize("job", [TOLD, UNTOLD], ids=["told", "untold"])
def test_weights_for_which_generation_stands_still_are_replayed_so(
    tmp_path: Path, job: Queued, pauses: bool
) -> None:
    job = replace(job, pauses=pauses)
    source = workload_of(of_own_loop(tmp_path, *processes(job)))
    if job.sync_s == UNTOLD.sync_s:
        with pytest.raises(OffTheRun, match="generation stands still while weights are sent"):
            predict(source, [("train_speed", "1.5")])
        return
    assert source(Constants()).weights_stop == (AT_ONCE if pauses else GOES_ON)
    for lever, value, true in (
        ("sync_speed", "4", gain(job, sync_s=job.sync_s / 4)),
        ("rollout_workers", "x2", gain(job, generators=2 * job.generators)),
        ("train_speed", "1.5", gain(job, train_s=job.train_s / 1.5)),
    ):
        found = predict(source, [(lever, value)])
        assert found.gain.low - 0.03 <= true <= found.gain.high + 0.03, (lever, found.gain, true)
