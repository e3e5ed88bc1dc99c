"""The queries that come with rltrace: all of them run on anything, and each tells what is so."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.analysis.named_queries import named_queries, named_query
from rltrace.trace.errors import RltraceError
from rltrace.trace.parquet import compact
from rltrace.trace.run import Run
from rltrace.trace.run_dir import create_run
from rltrace.trace.vocabulary import (
    Fate,
    Finish,
    Outcome,
    Phase,
    Stage,
    SyncRole,
    Transport,
)
from tests.analysis.handmade import process, rows, run_of

QUERIES = {query.name: query for query in named_queries()}
FIXTURE = Path(__file__).parents[1] / "fixtures/run-schema-1"
MS = 1_000_000


def ask(run: Run, name: str) -> list[dict[str, Any]]:
    relation = run.sql(named_query(name).sql)
    return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


def columns(found: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in found]


# --- all of them ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("empty") / "run"
    create_run(str(path), ["python", "train.py"], {}, "test")
    return rltrace.open_run(path)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("recorded") / "run"
    shutil.copytree(FIXTURE, path)
    return rltrace.open_run(path)


@pytest.mark.parametrize("name", QUERIES)
def test_of_an_empty_run_a_query_has_no_rows(empty: Run, name: str) -> None:
    assert ask(empty, name) == []


EMPTY_OF_THE_FIXTURE = {
    "gpu_utilisation",
    "groups_without_signal",
    "queue_waits",
    "verifier_errors",
}
"""What the first recorded run has nothing of."""


@pytest.mark.parametrize("name", QUERIES)
def test_a_recorded_run_has_an_answer(recorded: Run, name: str) -> None:
    assert bool(ask(recorded, name)) == (name not in EMPTY_OF_THE_FIXTURE)


def test_a_compacted_run_gives_the_same_answers(recorded: Run, tmp_path: Path) -> None:
    shutil.copytree(FIXTURE, tmp_path / "run")
    compact(rltrace.open_run(tmp_path / "run"))
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


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query_says_what_it_answers_and_has_units(query: Any) -> None:
    assert query.sql.startswith(f"-- {query.explains}\n")
    assert 30 < len(query.explains) <= 102
    assert query.explains.endswith(".")
    assert max(map(len, query.sql.splitlines())) <= 106
    for name in re.findall(r"AS (\w*(?:second|time|wait|latency|stall)\w*)", query.sql):
        assert re.search(r"(_s|_ns|^seconds|^waits|^timeouts)$", name), name


def test_the_page_of_queries_tells_all_of_them_and_what_they_answer() -> None:
    text = (Path(__file__).parents[2] / "docs/queries.md").read_text("utf-8")
    told = dict(re.findall(r"^\| `@(\w+)` \| (.*) \|$", text, re.M))
    assert told == {name: query.explains for name, query in QUERIES.items()}


@pytest.mark.parametrize(
    ("asked", "near"),
    [("@slow_trajectories", "@slowest_trajectories"), ("lag-histogram", "@lag_histogram")],
)
def test_a_name_that_there_is_not_is_told_those_near_it(asked: str, near: str) -> None:
    with pytest.raises(RltraceError, match=f"did you mean .*{near}") as error:
        named_query(asked)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


def test_of_a_name_like_no_other_nothing_is_guessed() -> None:
    with pytest.raises(RltraceError, match=r"there is no query @\.\./x: `rltrace query --list`"):
        named_query("@../x")


# --- time -----------------------------------------------------------------------------------------


def test_steps_and_stages_add_up(tmp_path: Path) -> None:
    """Two steps of 10 s: 6 s of generation in two processes that overlap, 2 s of training, 1 s of
    a checkpoint that lies half outside the step."""
    driver = process("driver", (("step", 0), 0, 10), (("step", 1), 10, 20))
    one = process("rollout", (Stage.ROLLOUT, 0, 4), (Stage.ROLLOUT, 10, 14))
    two = process("rollout", (Stage.ROLLOUT, 3, 6), (Stage.ROLLOUT, 13, 16), rank=1)
    learner = process("learner", (Stage.TRAIN, 7, 9), (Stage.TRAIN, 17, 19))
    learner.spans += process("", (Stage.CHECKPOINT, 19.5, 20.5)).spans
    run = run_of(tmp_path, driver, one, two, learner)
    found = ask(run, "step_breakdown")
    wanted = ("step", "seconds", "rollout_s", "train_s", "other_s", "reward_s", "nothing_seen_s")
    assert columns(found, *wanted) == [
        (0, 10, 6, 2, None, None, pytest.approx(2)),
        (1, 10, 6, 2, 0.5, None, pytest.approx(1.5)),
    ]
    shares = columns(ask(run, "stage_share"), "stage", "share", "mean_s", "longest_s", "spans")
    assert shares == [
        ("rollout", 0.6, 6, 6, 4),
        ("train", 0.2, 2, 2, 2),
        ("checkpoint", 0.025, 0.25, 0.5, 1),
    ]


def test_a_step_that_was_done_twice_counts_both_times(tmp_path: Path) -> None:
    driver = process("driver", (("step", 7), 0, 10), (("step", 7), 20, 25))
    learner = process("learner", (Stage.TRAIN, 0, 9), (Stage.TRAIN, 20, 24))
    found = ask(run_of(tmp_path, driver, learner), "step_breakdown")
    assert columns(found, "step", "seconds", "train_s", "nothing_seen_s") == [(7, 15, 13, 2)]


def test_the_longest_spans_are_no_steps(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, 100), (Stage.DATA, 0, 3), (Stage.OTHER, 0, -1))
    run = run_of(tmp_path, driver, process("rollout", (Stage.ROLLOUT, 0, 5), rank=4))
    found = ask(run, "longest_spans")
    assert columns(found, "stage", "role", "rank", "seconds") == [
        ("rollout", "rollout", 4, 5),
        ("data", "driver", 0, 3),
    ]


def test_what_never_ended_is_shown_with_its_age(tmp_path: Path) -> None:
    worker = process("rollout", (Stage.ROLLOUT, 1, -1), (Stage.TRAIN, 2, 10))
    rows(worker, "trajectories", start_s=[4.0, 4.0], end_s=[-1, 6.0], trajectory=[1, 2])
    rows(worker, "rewards", start_s=[5.0], end_s=[-1], trajectory=[2], component=["math"])
    rows(worker, "syncs", start_s=[6.0], end_s=[-1], role=[SyncRole.SINK])
    rows(worker, "samples", time_s=[12.0], counter=["queue/depth"], value=[1.0])
    found = ask(run_of(tmp_path, worker), "open_spans")
    assert columns(found, "kind", "stage", "name", "seconds") == [
        ("span", "rollout", "rollout", 11),
        ("trajectory", "rollout", None, 8),
        ("verdict", "reward", "math", 7),
        ("weight update", "sync", "sink", 6),
    ]


def test_waits_are_by_name_and_role(tmp_path: Path) -> None:
    learners = [
        process("learner", (Stage.WAIT, 0, 4), (Stage.WAIT, 10, 12), rank=rank) for rank in range(2)
    ]
    found = ask(run_of(tmp_path, *learners), "queue_waits")
    wanted = ("name", "role", "processes", "waits", "total_s", "mean_s", "max_s")
    assert columns(found, *wanted) == [("wait", "learner", 2, 4, 12, 3, 4)]


# --- trajectories ---------------------------------------------------------------------------------


def generated(path: Path) -> Run:
    """Step 0 of 20 s: twenty trajectories that began together, the n-th ends after n seconds; the
    last one hit the limit. Sample 5 was seen by a second process, too, and is used in step 0."""
    driver = process("driver", (("step", 0), 0, 20))
    worker = rows(
        process("rollout", rank=3),
        "trajectories",
        start_s=[0.0] * 20,
        first_token_s=[0.5] * 20,
        end_s=[float(n) for n in range(1, 21)],
        trajectory=list(range(1, 21)),
        prompt_tokens=[7] * 20,
        response_tokens=[10 * n for n in range(1, 21)],
        turns=[1] * 10 + [3] * 10,
        env_ns=[0] * 10 + [4000 * MS] * 10,
        preemptions=[0] * 19 + [2],
        finish=[Finish.STOP] * 19 + [Finish.LENGTH],
    )
    hung = process("rollout", rank=4)
    rows(hung, "trajectories", start_s=[0.0], end_s=[-1], trajectory=[99])
    again = process("agent-loop")
    rows(again, "trajectories", start_s=[0.0], end_s=[5.0], trajectory=[5], response_tokens=[50])
    rows(driver, "uses", time_s=[19.0, 19.5], trajectory=[5, 5], step=[0, 0], tokens=[50, 50])
    return run_of(path, driver, worker, hung, again)


def test_the_slowest_trajectories_come_first(tmp_path: Path) -> None:
    found = ask(generated(tmp_path), "slowest_trajectories")
    assert len(found) == 21
    wanted = ("trajectory", "seconds", "first_token_s", "env_s", "response_tokens", "tokens_per_s")
    assert columns(found[:1], *wanted) == [(20, 20, 0.5, 4, 200, 10)]
    assert columns(found[:1], "finish", "role", "rank") == [("length", "rollout", 3)]
    assert {row["used_in_step"] for row in found if row["trajectory"] == 5} == {0}


def test_the_tail_by_finish(tmp_path: Path) -> None:
    found = ask(generated(tmp_path), "tail_by_finish")
    wanted = ("finish", "trajectories", "p50_s", "max_s", "max_tokens")
    assert columns(found, *wanted) == [
        ("stop", 19, 10, 19, 190),
        ("length", 1, 20, 20, 200),
        (None, 1, 5, 5, 50),
    ]
    assert sum(row["share"] for row in found) == pytest.approx(1)


def test_the_tail_of_a_step_is_what_came_after_nearly_all(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, 20), (("step", 1), 20, 30))
    worker = rows(
        process("rollout"),
        "trajectories",
        start_s=[0.0] * 20,
        end_s=[float(n) for n in range(1, 20)] + [40.0],
        trajectory=list(range(20)),
    )
    found = ask(run_of(tmp_path, driver, worker), "tail_by_step")
    wanted = ("step", "trajectories", "p50_s", "max_s", "last_5_percent_s", "longest")
    assert columns(found, *wanted) == [(0, 19, 10, 19, 0, 18)]


def test_tools_are_by_turns(tmp_path: Path) -> None:
    found = ask(generated(tmp_path), "turns_and_tools")
    wanted = ("turns", "trajectories", "p50_s", "env_p50_s", "env_share")
    assert columns(found, *wanted) == [
        (1, 10, 5.5, 0, 0),
        (3, 10, 15.5, 4, pytest.approx(40 / 155)),
        (None, 1, 5, None, None),
    ]


def test_workers_are_told_apart(tmp_path: Path) -> None:
    found = ask(generated(tmp_path), "rollout_by_worker")
    wanted = ("role", "rank", "trajectories", "response_tokens", "tokens_per_s", "preemptions")
    assert columns(found, *wanted) == [
        ("agent-loop", 0, 1, 50, 10, None),
        ("rollout", 3, 20, 2100, 105, 2),
    ]


def test_tokens_of_a_step_are_counted_once(tmp_path: Path) -> None:
    worker = rows(
        process("rollout", (("step", 0), 0, 10), (("step", 1), 10, 15)),
        "trajectories",
        start_s=[0.0, 0.0, 0.0, 0.0],
        end_s=[5.0, 6.0, 12.0, 99.0],
        trajectory=[1, 1, 2, 3],
        response_tokens=[100, 100, 50, 7],
    )
    rows(
        worker,
        "uses",
        time_s=[9.0, 9.5, 14.0],
        trajectory=[1, 1, 2],
        step=[0, 0, 1],
        fate=[Fate.TRAINED, Fate.TRAINED, Fate.STALE],
        tokens=[100, 100, 50],
    )
    found = ask(run_of(tmp_path, worker), "tokens_per_second")
    wanted = ("step", "finished_samples", "finished_tokens_per_s", "trained_tokens_per_s")
    assert columns(found, *wanted) == [(0, 1, 10, 10), (1, 1, 10, None)]


# --- versions -------------------------------------------------------------------------------------


def trained(path: Path) -> Run:
    """Four samples were trained on by version 5, sample 4 in two passes; one was dropped. They were
    begun by versions 5, 3, 3, unknown and 0; sample 2 saw three versions."""
    worker = rows(
        process("rollout"),
        "trajectories",
        start_s=[0.0] * 5,
        end_s=[1.0, 3.0, 1.0, 1.0, 1.0],
        trajectory=[1, 2, 3, 4, 5],
        first_version=[5, 3, 3, -1, 0],
        last_version=[5, 5, 3, -1, 0],
        response_tokens=[100, 200, 300, 400, 500],
    )
    rows(
        worker,
        "uses",
        time_s=[10.0, 10.0, 10.0, 10.0, 11.0, 10.0],
        trajectory=[1, 2, 3, 4, 4, 5],
        version=[5, 5, 5, 5, 5, 5],
        fate=[Fate.TRAINED] * 5 + [Fate.STALE],
        tokens=[100, 200, 300, 400, 400, 500],
        mean_log_ratio=[0.0, 0.1, 0.2, math.nan, math.nan, 9.0],
        sum_w=[100.0, 200.0, 300.0, math.nan, math.nan, 9.0],
        sum_w_squared=[100.0, 400.0, 600.0, math.nan, math.nan, 9.0],
    )
    return run_of(path, worker)


def test_lag_is_of_what_was_trained_on_and_unknown_is_its_own(tmp_path: Path) -> None:
    found = ask(trained(tmp_path), "lag_histogram")
    wanted = ("lag", "samples", "tokens", "share_of_tokens")
    assert columns(found, *wanted) == [(0, 1, 100, 0.1), (2, 2, 500, 0.5), (None, 1, 400, 0.4)]


def test_lags_of_the_synthetic_run_are_the_truth(synthetic: Any) -> None:
    run, truth = synthetic(placement="async", unknown_versions=0.1)
    found = ask(run, "lag_histogram")
    named = {"unknown" if row["lag"] is None else str(row["lag"]): row for row in found}
    assert {lag: row["samples"] for lag, row in named.items()} == truth.lag_trajectories
    assert {lag: row["tokens"] for lag, row in named.items()} == truth.lag_tokens


def test_samples_of_several_versions_are_counted_by_how_many(tmp_path: Path) -> None:
    found = ask(trained(tmp_path), "mixed_versions")
    wanted = ("versions", "samples", "response_tokens", "p50_s")
    assert columns(found, *wanted) == [(1, 3, 900, 1), (3, 1, 200, 3), (None, 1, 400, 1)]


def test_what_is_left_of_stale_samples(tmp_path: Path) -> None:
    found = ask(trained(tmp_path), "off_policy_by_lag")
    wanted = ("lag", "uses", "mean_log_ratio", "effective_share")
    assert columns(found, *wanted) == [
        (0, 1, 0, 1),
        (2, 2, pytest.approx(0.16), pytest.approx(500**2 / 1000 / 500)),
        (None, 2, None, None),
    ]


# --- rewards --------------------------------------------------------------------------------------


def judged(path: Path) -> Run:
    """Groups A (rewards differ), B (all 0) and C (all 1) of two samples, D of one. A and B are
    trained on, C is dropped for it, D aborted and was never used."""
    group = {"A": 1, "B": 2, "C": 3, "D": 4}
    of = ["A", "A", "B", "B", "C", "C", "D"]
    worker = rows(
        process("rollout"),
        "trajectories",
        start_s=[0.0] * 7,
        end_s=[1.0, 1.0, 2.0, 3.0, 1.0, 1.0, 1.0],
        trajectory=list(range(1, 8)),
        group=[group[g] for g in of],
        prompt=[10 * group[g] for g in of],
        response_tokens=[10, 10, 20, 30, 5, 5, 70],
        finish=[Finish.STOP] * 6 + [Finish.ABORT],
    )
    rows(
        worker,
        "rewards",
        start_s=[1.0] * 6,
        end_s=[1.5, 1.5, 1.5, 1.5, 11.0, 2.0],
        trajectory=list(range(1, 7)),
        component=["math"] * 6,
        value=[0.0, 1.0, 0.0, 0.0, 1.0, 1.0],
        outcome=[Outcome.OK] * 4 + [Outcome.TIMEOUT, Outcome.ERROR],
    )
    rows(
        worker,
        "uses",
        time_s=[20.0] * 6,
        trajectory=list(range(1, 7)),
        step=[3, 3, 3, 3, 4, 4],
        fate=[Fate.TRAINED] * 4 + [Fate.ZERO_ADVANTAGE] * 2,
        tokens=[10, 10, 20, 30, 5, 5],
    )
    return run_of(path, worker)


def test_every_token_has_one_reason(tmp_path: Path) -> None:
    found = ask(judged(tmp_path), "useful_tokens_by_reason")
    assert columns(found, "reason", "samples", "tokens") == [
        ("useful", 2, 20),
        ("never used (abort)", 1, 70),
        ("trained, no signal in its group", 2, 50),
        ("zero-advantage", 2, 10),
    ]
    assert sum(row["share_of_tokens"] for row in found) == pytest.approx(1)


def test_useful_tokens_of_the_synthetic_run_are_the_truth(synthetic: Any) -> None:
    run, truth = synthetic(placement="async")
    found = {row["reason"]: row["tokens"] for row in ask(run, "useful_tokens_by_reason")}
    assert found["useful"] == truth.useful_tokens
    assert found["trained, no signal in its group"] == truth.zero_advantage_tokens
    assert found["stale"] == truth.tokens_by_fate["stale"]
    assert sum(found.values()) == truth.generated_tokens


def test_groups_without_a_signal_are_listed_with_their_cost(tmp_path: Path) -> None:
    found = ask(judged(tmp_path), "groups_without_signal")
    wanted = ("group", "prompt", "reward", "samples", "response_tokens", "generation_s", "step")
    assert columns(found, *wanted) == [(2, 20, 0, 2, 50, 5, 3), (3, 30, 1, 2, 10, 2, 4)]


def test_the_signal_of_each_step(tmp_path: Path) -> None:
    found = ask(judged(tmp_path), "signal_by_step")
    wanted = ("step", "groups", "with_signal", "share", "flat_reward", "flat_response_tokens")
    assert columns(found, *wanted) == [(3, 2, 1, 0.5, 0, 50), (4, 1, 0, 0, 1, 10)]


def test_prompts_that_nobody_solved(tmp_path: Path) -> None:
    found = ask(judged(tmp_path), "prompts_never_solved")
    assert columns(found, "prompt", "samples", "best_reward", "response_tokens") == [(20, 2, 0, 50)]


def test_the_reward_of_each_step_is_a_sum_of_components(tmp_path: Path) -> None:
    worker = rows(process("reward"), "uses", time_s=[9.0, 9.0], trajectory=[1, 2], step=[0, 0])
    rows(
        worker,
        "rewards",
        start_s=[1.0] * 4,
        end_s=[2.0] * 4,
        trajectory=[1, 1, 2, 2],
        component=["format", "math", "format", "math"],
        value=[0.5, 1.0, 0.5, 0.0],
    )
    found = ask(run_of(tmp_path, worker), "reward_by_step")
    wanted = ("step", "samples", "reward", "lowest", "highest", "trained_share")
    assert columns(found, *wanted) == [(0, 2, 1.0, 0.5, 1.5, 0)]


def test_the_tail_of_verdicts_and_which_failed(tmp_path: Path) -> None:
    run = judged(tmp_path)
    (latency,) = ask(run, "reward_latency_tail")
    assert (latency["component"], latency["verdicts"], latency["max_s"]) == ("math", 6, 10)
    assert latency["total_s"] == 13
    wanted = ("component", "verdicts", "timeouts", "errors", "failed_share", "failed_s")
    (failed,) = columns(ask(run, "verifier_errors"), *wanted)
    assert failed == ("math", 6, 1, 1, pytest.approx(1 / 3), 11)


# --- weights and devices --------------------------------------------------------------------------


def synced(path: Path) -> Run:
    """One update of 10 GB that a source sends within 2 s and two sinks take, one of them late."""
    source = process("learner", rank=0)
    source.spans += process("", (Stage.SYNC, 0, 1)).spans
    begin, end, *rest = source.spans[0]
    source.spans[0] = (begin, end, "gather", int(Stage.SYNC), int(Phase.GATHER), *rest[3:])
    sinks = [process("rollout", rank=rank) for rank in range(2)]
    parts = ((source, SyncRole.SOURCE, 2.0), (sinks[0], SyncRole.SINK, 2.0))
    for made, role, end_s in (*parts, (sinks[1], SyncRole.SINK, 5.0)):
        rows(
            made,
            "syncs",
            start_s=[0.0],
            end_s=[end_s],
            version=[1],
            role=[role],
            bytes=[10_000_000_000],
            stall_ns=[100 * MS],
            transport=[Transport.NCCL],
        )
    return run_of(path, source, *sinks)


def test_an_update_lasts_from_first_to_last(tmp_path: Path) -> None:
    (found,) = ask(synced(tmp_path), "weight_updates")
    assert (found["version"], found["seconds"], found["participants"]) == (1, 5, 3)
    assert (found["bytes"], found["gb_per_s"]) == (10_000_000_000, 2)
    assert (found["longest_stall_s"], found["transports"]) == (0.1, "nccl")


def test_the_slowest_participant_comes_first(tmp_path: Path) -> None:
    found = ask(synced(tmp_path), "sync_by_rank")
    wanted = ("role", "process_role", "rank", "mean_s", "gb_per_s")
    assert columns(found, *wanted) == [
        ("sink", "rollout", 1, 5, 2),
        ("source", "learner", 0, 2, 5),
        ("sink", "rollout", 0, 2, 5),
    ]


def test_phases_of_updates(tmp_path: Path) -> None:
    found = ask(synced(tmp_path), "sync_phases")
    assert columns(found, "phase", "name", "role", "total_s") == [
        ("gather", "gather", "learner", 1)
    ]


def test_devices_and_counters(tmp_path: Path) -> None:
    agent = process("agent")
    readings = {"gpu/busy_percent": [0.0, 100.0], "gpu/energy_joules": [5000.0, 9000.0]}
    for counter, values in readings.items():
        moments = [float(n) for n in range(len(values))]
        shape = {"counter": [counter] * len(values), "device": [1] * len(values)}
        rows(agent, "samples", time_s=moments, value=values, **shape)
    run = run_of(tmp_path, agent)
    (device,) = ask(run, "gpu_utilisation")
    assert (device["device"], device["busy_percent"], device["idle_share"]) == (1, 50, 0.5)
    assert (device["energy_kj"], device["memory_gb"]) == (4, None)
    wanted = ("counter", "device", "readings", "first", "last")
    assert columns(ask(run, "counters"), *wanted) == [
        ("gpu/busy_percent", 1, 2, 0, 100),
        ("gpu/energy_joules", 1, 2, 5000, 9000),
    ]
