"""The queries that come with rltrace tell where the time went: of steps, stages, samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.trace import Fate, Finish, Range, Run, Stage, SyncRole
from rltrace.testing.made import at, process, rows, run_of
from tests.analysis.asking import ask, columns

MS = 1_000_000


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


def test_a_stage_within_another_is_not_the_other_s(tmp_path: Path) -> None:
    """A loop of one lane: training encloses generation (3 s), a verdict in it and a second one
    that ends with it; evaluation and what it logs lie in a span of the loop's own. Nothing is
    longer than its step, and together they are no more than it."""
    loop = process(
        "trainer",
        (("step", 4), 0, 20),
        (Stage.OTHER, 0, 19),
        (Stage.TRAIN, 0, 9),
        (Stage.ROLLOUT, 0, 4),
        (Stage.REWARD, 1, 2),
        (Stage.REWARD, 8, 9),
        (Stage.EVAL, 9, 18),
        (Stage.ROLLOUT, 10, 12),
        (Stage.OTHER, 17, 18),
    )
    beside = process("rollout", (Stage.ROLLOUT, 3, 6), (Stage.DATA, 18, 19.5))
    found = ask(run_of(tmp_path, loop, beside), "step_breakdown")
    wanted = ("seconds", "train_s", "rollout_s", "reward_s", "other_s", "nothing_seen_s")
    assert columns(found, *wanted) == [(20, 4, 7, 2, 8.5, pytest.approx(0.5))]


def test_a_step_that_was_done_twice_counts_both_times(tmp_path: Path) -> None:
    driver = process("driver", (("step", 7), 0, 10), (("step", 7), 20, 25))
    learner = process("learner", (Stage.TRAIN, 0, 9), (Stage.TRAIN, 20, 24))
    found = ask(run_of(tmp_path, driver, learner), "step_breakdown")
    assert columns(found, "step", "seconds", "train_s", "nothing_seen_s") == [(7, 15, 13, 2)]


def test_the_longest_spans_are_no_steps(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, 100), (Stage.DATA, 0, 3))
    worker = process("rollout", (Stage.ROLLOUT, 0, 5), (Stage.OTHER, 6, -1), rank=4)
    run = run_of(tmp_path, driver, worker)
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


@pytest.mark.parametrize(
    ("meta", "seconds"),
    [({"end_real_ns": at(20)}, 19), ({"end_real_ns": at(5)}, 9), ({"end_real_ns": None}, 39)],
    ids=["it ended", "its processes outlived its command", "nobody saw its end"],
)
def test_what_never_ended_is_as_old_as_the_report_says(
    tmp_path: Path, meta: dict[str, int | None], seconds: float
) -> None:
    """The agent of the node reads a last time after the job has ended."""
    worker = process("rollout", (Stage.ROLLOUT, 1, -1), (Stage.TRAIN, 2, 10))
    agent = process("agent")
    rows(agent, "samples", time_s=[40.0], counter=["host/used_bytes"], value=[1.0])
    run = run_of(tmp_path, worker, agent, **meta)
    assert columns(ask(run, "open_spans"), "seconds") == [(seconds,)]
    assert [one.for_s for one in summarize(run, predict=False).coverage.in_progress] == [seconds]


def test_of_some_steps_what_is_open_is_as_old_as_the_report_says(tmp_path: Path) -> None:
    """Training goes on past the range: it is in it, and makes it no longer."""
    worker = process("rollout", (Stage.ROLLOUT, 1, -1), (Stage.TRAIN, 2, 10))
    run = run_of(tmp_path, worker)
    run.narrow(Range(at(0), at(8)))
    assert columns(ask(run, "open_spans"), "seconds") == [(7,)]
    assert [one.for_s for one in summarize(run, predict=False).coverage.in_progress] == [7]


def test_waits_are_by_name_and_role(tmp_path: Path) -> None:
    learners = [
        process("learner", (Stage.WAIT, 0, 4), (Stage.WAIT, 10, 12), rank=rank) for rank in range(2)
    ]
    found = ask(run_of(tmp_path, *learners), "queue_waits")
    wanted = ("name", "role", "processes", "waits", "total_s", "mean_s", "max_s")
    assert columns(found, *wanted) == [("wait", "learner", 2, 4, 12, 3, 4)]


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


def test_a_batch_that_is_reused_is_trained_on_in_each_of_its_steps(tmp_path: Path) -> None:
    """Two samples of 50 and 30 tokens: step 0 trains on both, the first in two pieces; step 1 on
    both again, step 2 on one. Nothing is generated after step 0."""
    steps = [(("step", n), 10 * n, 10 * n + 10) for n in range(3)]
    worker = rows(
        process("learner", *steps),
        "trajectories",
        start_s=[0.0, 0.0],
        end_s=[5.0, 6.0],
        trajectory=[1, 2],
        response_tokens=[50, 30],
    )
    rows(
        worker,
        "uses",
        time_s=[8.0, 9.0, 9.0, 18.0, 19.0, 28.0],
        trajectory=[1, 1, 2, 1, 2, 2],
        step=[0, 0, 0, 1, 1, 2],
        fate=[Fate.TRAINED] * 6,
        tokens=[50, 50, 30, 50, 30, 30],
    )
    found = ask(run_of(tmp_path, worker), "tokens_per_second")
    wanted = ("finished_tokens", "trained_samples", "trained_tokens", "trained_tokens_per_s")
    assert columns(found, *wanted) == [
        (80, 2, 80, 8),
        (None, 2, 80, 8),
        (None, 1, 30, 3),
    ]
