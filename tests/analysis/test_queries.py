"""The queries that come with rltrace: all of them run on anything and say what they answer, and
tell where the time went, what weights and devices did, and what was learned from."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing import at, between, process, run_of, stating
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.report import named_queries, named_query
from rltrace.testing.inside.trace import (
    Fate,
    Finish,
    Outcome,
    Phase,
    Range,
    RltraceError,
    Stage,
    SyncRole,
    Transport,
)
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.analysis.asking import ask, told
from tests.analysis.made import rows
from tests.trace.test_run import FIXTURE, old_copy

QUERIES = {query.name: query for query in named_queries()}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("recorded") / "run"
    return rltrace.open_run(shutil.copytree(FIXTURE, path))


EMPTY_OF_THE_FIXTURE = {"captured_samples", "gpu_utilisation", "groups_without_signal",
                        "queue_waits", "signal_by_step", "verifier_errors"}  # fmt: skip
"""What the first recorded run has nothing of. Its three samples were trained on one after the
other: no two are of one group, and only a group has a signal."""


@pytest.mark.parametrize("name", QUERIES)
def test_a_recorded_run_has_an_answer(recorded: Run, empty: Run, name: str) -> None:
    assert ask(empty, name) == []
    assert bool(ask(recorded, name)) == (name not in EMPTY_OF_THE_FIXTURE)


def test_a_compacted_run_gives_the_same_answers(recorded: Run, tmp_path: Path) -> None:
    compact(rltrace.open_run(old_copy(tmp_path / "run")))
    compacted = rltrace.open_run(tmp_path / "run")
    assert compacted.is_compacted
    for name in QUERIES:
        assert str(ask(compacted, name)) == str(ask(recorded, name)), name


@pytest.mark.parametrize("name", QUERIES)
def test_the_order_of_rows_is_the_same_each_time(synthetic: Any, name: str) -> None:
    run, _ = synthetic(placement="async")

    def known() -> list[list[Any]]:
        """Without sums of floats, which depend on the order in which threads add them up."""
        return [[v for v in row.values() if not isinstance(v, float)] for row in ask(run, name)]

    assert known() == known()


def test_a_query_and_the_page_of_queries_say_what_it_answers_and_it_has_units() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/queries.md").read_text("utf-8")
    told = dict(re.findall(r"^\| `@(\w+)` \| (.*) \|$", text, re.M))
    assert told == {name: query.explains for name, query in QUERIES.items()}
    for query in QUERIES.values():
        assert query.sql.startswith(f"-- {query.explains}\n")
        for name in re.findall(r"AS (\w*(?:second|time|wait|latency|stall)\w*)", query.sql):
            assert re.search(r"(_s|_ns|^seconds|^waits|^timeouts)$", name), name


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("@slow_trajectories", "did you mean .*@slowest_trajectories"),
        ("lag-histogram", "did you mean .*@lag_histogram"),
        ("@slowest", "did you mean .*@slowest_trajectories"),
        ("@../x", r"there is no query @\.\./x: `rltrace query --list`"),
    ],
)
def test_a_name_that_there_is_not_is_told_those_near_it(asked: str, near: str) -> None:
    with pytest.raises(RltraceError, match=near) as error:
        named_query(asked)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


MS, NAN = 1_000_000, math.nan
ROLLOUT, REWARD, TRAIN, OTHER = Stage.ROLLOUT, Stage.REWARD, Stage.TRAIN, Stage.OTHER


def two_steps(path: Path) -> Run:
    """Two steps of 10 s: 6 s of generation in two processes that overlap, 2 s of training, 1 s of
    a checkpoint that lies half outside the step."""
    one = process("rollout", (ROLLOUT, 0, 4), (ROLLOUT, 10, 14))
    two = process("rollout", (ROLLOUT, 3, 6), (ROLLOUT, 13, 16), rank=1)
    trains = [(TRAIN, 7, 9), (TRAIN, 17, 19), (Stage.CHECKPOINT, 19.5, 20.5)]
    driver = process("driver", (("step", 0), 0, 10), (("step", 1), 10, 20))
    return run_of(path, driver, one, two, process("learner", *trains))


def generated(path: Path) -> Run:
    """Step 0 of 19.8 s: twenty trajectories that began together, the n-th ends after n seconds; the
    last one hit the limit. Sample 5 was seen by a second process, too, and is used in step 0."""
    driver = process("driver", (("step", 0), 0, 19.8), (Stage.DATA, 0, 3))
    worker = process("rollout", (ROLLOUT, 0, 5), (OTHER, 6, -1), rank=3)
    rows(worker, "trajectories", start_s=0.0, first_token_s=0.5, prompt_tokens=7,
         end_s=[float(n) for n in range(1, 21)], trajectory=list(range(1, 21)),
         response_tokens=[10 * n for n in range(1, 21)], turns=[1] * 10 + [3] * 10,
         env_ns=[0] * 10 + [4000 * MS] * 10, preemptions=[0] * 19 + [2],
         finish=[Finish.STOP] * 19 + [Finish.LENGTH])  # fmt: skip
    waits = (Stage.WAIT, 0, 4), (Stage.WAIT, 10, 12)
    hung, again = process("rollout", *waits, rank=4), process("agent-loop")
    rows(hung, "trajectories", start_s=0.0, end_s=-1, trajectory=99)
    rows(again, "trajectories", start_s=0.0, end_s=5.0, trajectory=5, response_tokens=50)
    rows(driver, "uses", time_s=[19.0, 19.5], trajectory=5, step=0, tokens=50)
    return run_of(path, driver, worker, hung, again)


def updated(path: Path) -> Run:
    """One update of 10 GB that a source sends within 2 s and two sinks take, one of them late."""
    source, *sinks = process("learner"), process("rollout"), process("rollout", rank=1)
    source.span(between(0, 1), "gather", Stage.SYNC, -1, phase=Phase.GATHER)
    update = {"start_s": 0.0, "version": 1, "bytes": 10**10, "stall_ns": 100 * MS}
    update["transport"] = Transport.NCCL
    rows(source, "syncs", end_s=2.0, role=SyncRole.SOURCE, **update)
    for sink, end_s in zip(sinks, (2.0, 5.0), strict=True):
        rows(sink, "syncs", end_s=end_s, role=SyncRole.SINK, **update)
    return run_of(path, source, *sinks)


def sampled(path: Path) -> Run:
    agent, names = process("agent"), ["gpu/busy_percent"] * 2 + ["gpu/energy_joules"] * 2
    rows(agent, "samples", time_s=[0.0, 1.0] * 2, value=[0.0, 100.0, 5000.0, 9000.0],
         counter=names, device=1)  # fmt: skip
    return run_of(path, agent)


def trained(path: Path) -> Run:
    """Four samples were trained on by version 5, sample 4 in two passes; one was dropped. They were
    begun by versions 5, 3, 3, unknown and 0; sample 2 saw three versions."""
    worker = process("rollout")
    rows(worker, "trajectories", start_s=0.0, end_s=[1.0, 3.0, 1.0, 1.0, 1.0],
         trajectory=[1, 2, 3, 4, 5], first_version=[5, 3, 3, -1, 0], last_version=[5, 5, 3, -1, 0],
         response_tokens=[100, 200, 300, 400, 500])  # fmt: skip
    rows(worker, "uses", time_s=[10.0, 10.0, 10.0, 10.0, 11.0, 10.0], version=5,
         trajectory=[1, 2, 3, 4, 4, 5], fate=[Fate.TRAINED] * 5 + [Fate.STALE],
         tokens=[100, 200, 300, 400, 400, 500], mean_log_ratio=[0.0, 0.1, 0.2, NAN, NAN, 9.0],
         sum_w=[100.0, 200.0, 300.0, NAN, NAN, 9.0],
         sum_w_squared=[100.0, 400.0, 600.0, NAN, NAN, 9.0])  # fmt: skip
    return run_of(path, worker)


def judged(path: Path) -> Run:
    """Groups 1 (rewards differ), 2 (all 0) and 3 (all 1) of two samples, 4 of one. 1 and 2 are
    trained on, 3 is dropped for it, 4 aborted and was never used."""
    worker, ids, group = process("rollout"), list(range(1, 8)), [1, 1, 2, 2, 3, 3, 4]
    rows(worker, "trajectories", start_s=0.0, end_s=[1.0, 1.0, 2.0, 3.0, 1.0, 1.0, 1.0],
         trajectory=ids, group=group, prompt=[10 * g for g in group],
         response_tokens=[10, 10, 20, 30, 5, 5, 70],
         finish=[Finish.STOP] * 6 + [Finish.ABORT])  # fmt: skip
    rows(worker, "rewards", start_s=1.0, end_s=[1.5, 1.5, 1.5, 1.5, 11.0, 2.0], trajectory=ids[:6],
         component="math", value=[0.0, 1.0, 0.0, 0.0, 1.0, 1.0],
         outcome=[Outcome.OK] * 4 + [Outcome.TIMEOUT, Outcome.ERROR])  # fmt: skip
    rows(worker, "uses", time_s=20.0, trajectory=ids[:6], step=[3, 3, 3, 3, 4, 4],
         fate=[Fate.TRAINED] * 4 + [Fate.ZERO_ADVANTAGE] * 2,
         tokens=[10, 10, 20, 30, 5, 5])  # fmt: skip
    return run_of(path, worker)


@pytest.mark.parametrize(
    ("run", "query", "wanted", "expected"),
    [
        (two_steps, "step_breakdown",
         "step seconds rollout_s train_s other_s reward_s nothing_seen_s",
         [(0, 10, 6, 2, None, None, pytest.approx(2)),
          (1, 10, 6, 2, 0.5, None, pytest.approx(1.5))]),
        (two_steps, "stage_share", "stage share mean_s longest_s spans",
         [("rollout", 0.6, 6, 6, 4), ("train", 0.2, 2, 2, 2),
          ("checkpoint", 0.025, 0.25, 0.5, 1)]),
        (generated, "tail_by_finish", "finish trajectories share p50_s max_s max_tokens",
         [("stop", 19, pytest.approx(19 / 21), 10, 19, 190),
          ("length", 1, pytest.approx(1 / 21), 20, 20, 200),
          (None, 1, pytest.approx(1 / 21), 5, 5, 50)]),
        (generated, "turns_and_tools", "turns trajectories p50_s env_p50_s env_share",
         [(1, 10, 5.5, 0, 0), (3, 10, 15.5, 4, pytest.approx(40 / 155)), (None, 1, 5, None, None)]),
        (generated, "tail_by_step", "step trajectories p50_s max_s last_5_percent_s longest",
         [(0, 20, 9.5, 19, 1, 19)]),
        (generated, "longest_spans", "stage role rank seconds",
         [("rollout", "rollout", 3, 5), ("wait", "rollout", 4, 4), ("data", "driver", 0, 3),
          ("wait", "rollout", 4, 2)]),
        (generated, "queue_waits", "name role processes waits total_s mean_s max_s",
         [("wait", "rollout", 1, 2, 6, 3, 4)]),
        (generated, "rollout_by_worker",
         "role rank trajectories response_tokens tokens_per_s preemptions",
         [("agent-loop", 0, 1, 50, 10, None), ("rollout", 3, 20, 2100, 105, 2)]),
        (updated, "weight_updates",
         "version seconds participants bytes gb_per_s longest_stall_s transports",
         [(1, 5, 3, 10**10, 2, 0.1, "nccl")]),
        (updated, "sync_by_rank", "role process_role rank mean_s gb_per_s",
         [("sink", "rollout", 1, 5, 2), ("source", "learner", 0, 2, 5),
          ("sink", "rollout", 0, 2, 5)]),
        (updated, "sync_phases", "phase name role total_s", [("gather", "gather", "learner", 1)]),
        (sampled, "gpu_utilisation", "device busy_percent idle_share energy_kj memory_gb",
         [(1, 50, 0.5, 4, None)]),
        (sampled, "counters", "counter device readings first last",
         [("gpu/busy_percent", 1, 2, 0, 100), ("gpu/energy_joules", 1, 2, 5000, 9000)]),
        (trained, "lag_histogram", "lag samples tokens share_of_tokens",
         [(0, 1, 100, 0.1), (2, 2, 500, 0.5), (None, 1, 400, 0.4)]),
        (trained, "mixed_versions", "versions samples response_tokens p50_s",
         [(1, 3, 900, 1), (3, 1, 200, 3), (None, 1, 400, 1)]),
        (trained, "off_policy_by_lag", "lag uses mean_log_ratio effective_share",
         [(0, 1, 0, 1), (2, 2, pytest.approx(0.16), pytest.approx(500**2 / 1000 / 500)),
          (None, 2, None, None)]),
        (judged, "useful_tokens_by_reason", "reason samples tokens share_of_tokens",
         [("useful", 2, 20, pytest.approx(2 / 15)),
          ("never used (abort)", 1, 70, pytest.approx(7 / 15)),
          ("trained, no signal in its group", 2, 50, pytest.approx(1 / 3)),
          ("zero-advantage", 2, 10, pytest.approx(1 / 15))]),
        (judged, "groups_without_signal",
         "group prompt reward samples response_tokens generation_s step",
         [(2, 20, 0, 2, 50, 5, 3), (3, 30, 1, 2, 10, 2, 4)]),
        (judged, "signal_by_step", "step groups with_signal share flat_reward flat_response_tokens",
         [(3, 2, 1, 0.5, 0, 50), (4, 1, 0, 0, 1, 10)]),
        (judged, "prompts_never_solved", "prompt samples best_reward response_tokens",
         [(20, 2, 0, 50)]),
        (judged, "reward_latency_tail", "component verdicts max_s total_s", [("math", 6, 10, 13)]),
        (judged, "verifier_errors", "component verdicts timeouts errors failed_share failed_s",
         [("math", 6, 1, 1, pytest.approx(1 / 3), 11)]),
    ],
)  # fmt: skip
def test_what_a_query_tells(
    tmp_path: Path, run: Callable[[Path], Run], query: str, wanted: str, expected: list[Any]
) -> None:
    assert told(run(tmp_path), query, wanted) == expected


def test_the_slowest_trajectories_come_first(tmp_path: Path) -> None:
    run = generated(tmp_path)
    wanted = "trajectory seconds first_token_s env_s response_tokens tokens_per_s finish role rank"
    found = told(run, "slowest_trajectories", wanted)
    assert len(found) == 21
    assert found[0] == (20, 20, 0.5, 4, 200, 10, "length", "rollout", 3)
    used = told(run, "slowest_trajectories", "trajectory used_in_step")
    assert {step for trajectory, step in used if trajectory == 5} == {0}


NESTED = [(("step", 4), 0, 20), (OTHER, 0, 19), (TRAIN, 0, 9), (ROLLOUT, 0, 4), (REWARD, 1, 2),
          (REWARD, 8, 9), (Stage.EVAL, 9, 18), (ROLLOUT, 10, 12), (OTHER, 17, 18)]  # fmt: skip
"""A loop of one lane: training encloses generation (3 s), a verdict in it and a second one that
ends with it; evaluation, what it generates and logs lie in a span of the loop's own."""


@pytest.mark.parametrize(
    ("loop", "beside", "expected"),
    [
        (NESTED, [(ROLLOUT, 3, 6), (Stage.DATA, 18, 19.5)],
         (4, 20, 4, 5, 2, 10.5, pytest.approx(0.5))),
        ([(("step", 7), 0, 10), (("step", 7), 20, 25)], [(TRAIN, 0, 9), (TRAIN, 20, 24)],
         (7, 15, 13, None, None, None, 2)),
    ],
    ids=["a stage within another is not the other's", "a step done twice counts both times"],
)  # fmt: skip
def test_what_a_step_consists_of(
    tmp_path: Path, loop: list[Any], beside: list[Any], expected: tuple[Any, ...]
) -> None:
    run = run_of(tmp_path, process("trainer", *loop), process("rollout", *beside))
    wanted = "step seconds train_s rollout_s reward_s other_s nothing_seen_s"
    assert told(run, "step_breakdown", wanted) == [expected]


def test_what_never_ended_is_shown_with_its_age(tmp_path: Path) -> None:
    worker = process("rollout", (ROLLOUT, 1, -1), (TRAIN, 2, 10))
    rows(worker, "trajectories", start_s=4.0, end_s=[-1, 6.0], trajectory=[1, 2])
    rows(worker, "rewards", start_s=5.0, end_s=-1, trajectory=2, component="math")
    rows(worker, "syncs", start_s=6.0, end_s=-1, role=SyncRole.SINK)
    rows(worker, "samples", time_s=12.0, counter="queue/depth", value=1.0)
    assert told(run_of(tmp_path, worker), "open_spans", "kind stage name seconds") == [
        ("span", "rollout", "rollout", 11),
        ("trajectory", "rollout", None, 8),
        ("verdict", "reward", "math", 7),
        ("weight update", "sync", "sink", 6),
    ]


@pytest.mark.parametrize(
    ("meta", "seconds"),
    [
        ({"end_real_ns": at(20)}, 19),
        ({"end_real_ns": at(5)}, 9),
        ({"end_real_ns": None}, 39),
        (None, 7),
    ],
    ids=["it ended", "its processes outlived its command", "nobody saw its end", "some steps"],
)
def test_what_never_ended_is_as_old_as_the_report_says(
    tmp_path: Path, meta: dict[str, int | None] | None, seconds: float
) -> None:
    """The agent of the node reads a last time after the job has ended. Of 8 s of the run: training
    goes on past them, is in them, and makes them no longer."""
    worker = process("rollout", (ROLLOUT, 1, -1), (TRAIN, 2, 10))
    agent = rows(process("agent"), "samples", time_s=40.0, counter="host/used_bytes", value=1.0)
    run = run_of(tmp_path, worker, *([] if meta is None else [agent]), **(meta or {}))
    if meta is None:
        run.narrow(Range(at(0), at(8)))
    assert told(run, "open_spans", "seconds") == [(seconds,)]
    assert [one.open_s for one in summarize(run, predict=False).coverage.in_progress] == [seconds]


def test_tokens_of_a_step_are_counted_once(tmp_path: Path) -> None:
    worker = process("rollout", (("step", 0), 0, 10), (("step", 1), 10, 15))
    rows(worker, "trajectories", start_s=0.0, end_s=[5.0, 6.0, 12.0, 99.0],
         trajectory=[1, 1, 2, 3], response_tokens=[100, 100, 50, 7])  # fmt: skip
    rows(worker, "uses", time_s=[9.0, 9.5, 14.0], trajectory=[1, 1, 2], step=[0, 0, 1],
         fate=[Fate.TRAINED, Fate.TRAINED, Fate.STALE], tokens=[100, 100, 50])  # fmt: skip
    wanted = "step finished_samples finished_tokens_per_s trained_tokens_per_s"
    found = told(run_of(tmp_path, worker), "tokens_per_second", wanted)
    assert found == [(0, 1, 10, 10), (1, 1, 10, None)]


def test_a_batch_that_is_reused_is_trained_on_in_each_of_its_steps(tmp_path: Path) -> None:
    """Two samples of 50 and 30 tokens: step 0 trains on both, the first in two pieces; step 1 on
    both again, step 2 on one. Nothing is generated after step 0."""
    worker = process("learner", *((("step", n), 10 * n, 10 * n + 10) for n in range(3)))
    rows(worker, "trajectories", start_s=0.0, end_s=[5.0, 6.0], trajectory=[1, 2],
         response_tokens=[50, 30])  # fmt: skip
    rows(worker, "uses", time_s=[8.0, 9.0, 9.0, 18.0, 19.0, 28.0], trajectory=[1, 1, 2, 1, 2, 2],
         step=[0, 0, 0, 1, 1, 2], fate=Fate.TRAINED, tokens=[50, 50, 30, 50, 30, 30])  # fmt: skip
    wanted = "finished_tokens trained_samples trained_tokens trained_tokens_per_s"
    found = told(run_of(tmp_path, worker), "tokens_per_second", wanted)
    assert found == [(80, 2, 80, 8), (None, 2, 80, 8), (None, 1, 30, 3)]


BY_STEP = "step samples reward lowest highest trained_share"


def test_the_reward_of_each_step_is_a_sum_of_components(tmp_path: Path) -> None:
    worker = rows(process("reward"), "uses", time_s=9.0, trajectory=[1, 2], step=0)
    rows(worker, "rewards", start_s=1.0, end_s=2.0, trajectory=[1, 1, 2, 2],
         component=["format", "math"] * 2, value=[0.5, 1.0, 0.5, 0.0])  # fmt: skip
    run = run_of(tmp_path, worker)
    assert told(run, "reward_by_step", BY_STEP) == [(0, 2, 1.0, 0.5, 1.5, 0)]
    weighted = stating(run, {"reward_weights": {"format": 0.5, "math": 2.0}})
    assert told(weighted, "reward_by_step", BY_STEP) == [(0, 2, 1.25, 0.25, 2.25, 0)]


def test_what_did_not_apply_adds_nothing_and_what_has_no_weight_neither(tmp_path: Path) -> None:
    worker = rows(process("reward"), "uses", time_s=9.0, trajectory=[1, 2, 3], step=0)
    rows(worker, "rewards", start_s=1.0, end_s=2.0, trajectory=[1, 1, 2, 2, 3],
         component=["math", "length", "math", "length", "math"],
         value=[1.0, math.inf, NAN, 7.0, NAN])  # fmt: skip
    run = stating(run_of(tmp_path, worker), {"reward_weights": {"math": 2.0, "length": 0.0}})
    assert told(run, "reward_by_step", BY_STEP) == [(0, 3, 1.0, 0.0, 2.0, 0)]
