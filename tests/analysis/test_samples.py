"""What follows a sample from generation to the learner: lag, goodput, lost tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.devices import count_devices
from rltrace.testing.inside.analysis import Goodput, find_steps, freshness, goodput, staleness
from rltrace.testing.inside.trace import Fate, Finish, Run, Stage
from rltrace.testing.made import at, process, rows, run_of

WORKLOADS = [
    {},
    {"placement": "one-step-off"},
    {"placement": "async", "mixed": 0.3, "unknown_versions": 0.1},
    {"placement": "async", "kill_step": 5, "torn": True, "nodes": 2},
    {"zero_groups": 0.4, "zero_groups_dropped": True, "dropped": [["failed", 0.1]]},
]


def goodput_of(run: Run, **options: Any) -> Goodput:
    options = {"price_usd_per_hour": None, **options}
    found = goodput(run, find_steps(run, (at(0), at(100))), **options)
    assert found is not None
    return found


@pytest.mark.parametrize("knobs", WORKLOADS, ids=str)
def test_lags_are_the_truth(synthetic: Any, knobs: dict[str, Any]) -> None:
    run, truth = synthetic(**_hashable(knobs))
    found = staleness(run)
    bars = {"unknown" if b.lag is None else str(b.lag): b for b in found.by_first_token}
    assert {key: bar.trajectories for key, bar in bars.items()} == truth.lag_trajectories
    assert {key: bar.tokens for key, bar in bars.items()} == truth.lag_tokens
    known = sum(n for key, n in truth.lag_trajectories.items() if key != "unknown")
    assert found.known == found.versions_known == known
    assert found.mixed_share * known == pytest.approx(truth.mixed_trajectories)
    total = sum(int(k) * n for k, n in truth.lag_trajectories.items() if k != "unknown")
    assert found.mean_lag == pytest.approx(total / known)
    assert found.mean_in_flight + found.mean_in_queue == pytest.approx(found.mean_lag)
    assert (found.mean_in_flight > 0) == (truth.mixed_trajectories > 0)


def loop(
    path: Path,
    *,
    updates: tuple[int, ...] = (1, 2, 3),
    said_from: int = 1,
    used: tuple[int, ...] | None = None,
    before_s: float = 0.0,
) -> Run:
    """A loop that generates, trains and updates the weights in 10 s, a sample a step, and says the
    version of the last update from step `said_from` on. `used` are the versions of its uses, where
    those are others; `before_s` is by how much updates are earlier."""
    n = len(updates)
    first = [updates[i - 1] if i and i >= said_from else -1 for i in range(n)]
    made = process("driver", *((("step", i), 10 * i, 10 * i + 10) for i in range(n)))
    rows(
        made,
        "trajectories",
        start_s=[10 * i + 1 for i in range(n)],
        end_s=[10 * i + 4 for i in range(n)],
        trajectory=list(range(n)),
        first_version=first,
        last_version=first,
        response_tokens=[10] * n,
    )
    rows(
        made,
        "uses",
        time_s=[10 * i + 6 for i in range(n)],
        trajectory=list(range(n)),
        step=list(range(n)),
        version=first if used is None else list(used),
        fate=[Fate.TRAINED] * n,
        tokens=[10] * n,
    )
    rows(
        made,
        "syncs",
        start_s=[10 * i + 8 - before_s for i in range(n)],
        end_s=[10 * i + 9 - before_s for i in range(n)],
        version=list(updates),
    )
    return run_of(path, made)


@pytest.mark.parametrize(
    "job",
    [{}, {"updates": (1,)}, {"updates": (7, 8, 9)}, {"used": (0, 1, 2)}],
    ids=["from 1", "one update", "resumed", "uses are told"],
)
def test_what_was_made_before_the_first_update_is_of_the_version_before_it(
    tmp_path: Path, job: dict[str, Any]
) -> None:
    run = loop(tmp_path, **job)
    n = len(job.get("updates", (1, 2, 3)))
    assert [(bar.lag, bar.trajectories) for bar in staleness(run).by_first_token] == [(0, n)]
    assert goodput_of(run).trained.unknown_lag_tokens == 0
    assert freshness(run, staleness(run)).unit.learner_steps == 1


@pytest.mark.parametrize(
    "job",
    [
        {"updates": (4, 8, 12)},
        {"updates": (7,)},
        {"updates": (0, 1, 2)},
        {"updates": (2, 1, 3)},
        {"used": (5, 1, 2)},
        {"before_s": 5},
        {"before_s": 2.5},
        {"said_from": 2},
    ],
    ids=[
        "counted in fours",
        "one update of an unknown count",
        "from 0",
        "not in order",
        "uses of another version",
        "an update while it was generated",
        "weights loaded before anything was trained on",
        "versions not said after updates either",
    ],
)
def test_where_the_version_before_the_first_update_is_not_clear_the_lag_is_unknown(
    tmp_path: Path, job: dict[str, Any]
) -> None:
    found = staleness(loop(tmp_path, **job))
    assert found.by_first_token[-1].lag is None
    assert found.by_first_token[-1].trajectories >= 1


@pytest.mark.parametrize("knobs", WORKLOADS, ids=str)
def test_every_token_is_accounted_for(synthetic: Any, knobs: dict[str, Any]) -> None:
    run, truth = synthetic(**_hashable(knobs))
    found = goodput_of(run)
    lost = {loss.reason: loss.tokens for loss in found.losses if loss.tokens}
    dropped = {k: n for k, n in truth.tokens_by_fate.items() if k != "trained"}
    if truth.never_used_tokens:
        dropped["never used"] = truth.never_used_tokens
    assert lost == dropped
    assert found.generated_tokens == truth.generated_tokens
    trained = found.trained_share * found.generated_tokens
    assert trained == pytest.approx(truth.tokens_by_fate["trained"])
    assert trained + sum(lost.values()) == pytest.approx(found.generated_tokens)


@pytest.mark.parametrize("knobs", WORKLOADS, ids=str)
def test_goodput_is_the_truth(synthetic: Any, knobs: dict[str, Any]) -> None:
    run, truth = synthetic(**{"sigma": 0.3, "reward_sigma": 0.1, **_hashable(knobs)})
    found = goodput_of(run)
    assert found.devices.kind == "GPU"
    assert found.devices.count == truth.gpus
    assert found.window_s == pytest.approx(truth.steady_s, abs=1e-6)
    assert found.trained.useful_tokens == truth.steady_useful_tokens
    assert found.useful_tokens_per_device_s == pytest.approx(truth.goodput_tokens_per_gpu_s)
    trained = found.trained
    assert trained.tokens - trained.zero_advantage_tokens == trained.useful_tokens
    assert trained.useful_known_tokens == trained.useful_tokens


def _hashable(knobs: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(map(tuple, v)) if isinstance(v, list) else v for k, v in knobs.items()}


def test_a_lag_budget_is_a_condition_of_its_own(synthetic: Any) -> None:
    run, _ = synthetic(placement="async", unknown_versions=0.2, zero_groups=0.0, sigma=0.3)
    whole, found = goodput_of(run), goodput_of(run, lag_budget=1)
    assert whole.trained.over_lag_budget_tokens == 0
    assert found.trained.over_lag_budget_tokens > 0
    assert found.trained.tokens == whole.trained.tokens
    assert (
        found.trained.useful_tokens == found.trained.tokens - found.trained.over_lag_budget_tokens
    )
    # An unknown lag is counted as useful and said to be unknown, so there is a range.
    assert found.trained.unknown_lag_tokens > 0
    assert (
        found.trained.useful_known_tokens
        == found.trained.useful_tokens - found.trained.unknown_lag_tokens
    )


def test_prices_are_dated_ranges_that_a_user_can_override(synthetic: Any) -> None:
    run, _ = synthetic()
    listed = goodput_of(run)
    assert listed.price is not None
    assert listed.price.date == "2026-05-20"
    assert (
        listed.price.low_usd_per_hour < listed.price.usd_per_hour < listed.price.high_usd_per_hour
    )
    expected = listed.useful_tokens_per_device_s * 3600 / listed.price.usd_per_hour
    assert listed.useful_tokens_per_usd() == pytest.approx(expected)
    own = goodput_of(run, price_usd_per_hour=1.0)
    assert own.price is not None
    assert own.price.date == ""
    assert own.useful_tokens_per_usd() == pytest.approx(own.useful_tokens_per_device_s * 3600)


def test_a_gpu_that_no_table_knows_has_no_price(synthetic: Any) -> None:
    run, _ = synthetic(gpu_name="Voodoo 2")
    found = goodput_of(run)
    assert found.price is None
    assert math.isnan(found.useful_tokens_per_usd())


def test_on_cpu_the_cores_of_all_nodes_are_counted_and_have_no_price(synthetic: Any) -> None:
    run, _ = synthetic(gpus=0, nodes=2, cores_per_node=12)
    found = goodput_of(run)
    assert found.devices.kind == "core"
    assert found.devices.count == 24
    assert found.price is None


def test_gpus_that_no_driver_shows_are_told_as_logical(tmp_path: Path) -> None:
    learner = process("learner", (("step", 0), 0, 10), devices=(0,))
    seen = count_devices(run_of(tmp_path / "a", learner, process("agent")))
    assert (seen.kind, seen.count) == ("logical GPU", 1)
    assert "NVML sees none" in seen.source
    nobody_looked = count_devices(run_of(tmp_path / "b", learner))
    assert (nobody_looked.kind, nobody_looked.count) == ("GPU", 1)


def learner(*steps: tuple[int, float, float]) -> Any:
    return process("learner", *((("step", n), a, b) for n, a, b in steps))


def test_versions_that_nobody_recorded_stay_unknown(tmp_path: Path) -> None:
    trainer = learner((0, 0, 10))
    rows(
        trainer,
        "trajectories",
        start_s=[1, 1, 1],
        end_s=[2, 2, 2],
        trajectory=[1, 2, 3],
        first_version=[-1, 4, 4],
        response_tokens=[10, 20, 40],
    )
    rows(
        trainer,
        "uses",
        time_s=[5, 5, 5, 5],
        trajectory=[1, 2, 3, 4],  # 4 was trained on and its generation never seen
        version=[5, -1, 5, 5],
        fate=[Fate.TRAINED] * 4,
    )
    found = staleness(run_of(tmp_path, trainer))
    assert [(b.lag, b.trajectories, b.tokens) for b in found.by_first_token] == [
        (1, 1, 40),
        (None, 3, 30),
    ]
    assert found.mean_lag == 1
    assert math.isnan(found.mixed_share)


def took_samples(path: Path, *spans: tuple[Any, ...]) -> Goodput:
    """The goodput of a learner with these spans, which took two samples at 5 s."""
    trainer = process("learner", *spans)
    rows(trainer, "uses", time_s=[5, 5], trajectory=[1, 2], fate=[Fate.TRAINED] * 2, tokens=[9, 9])
    return goodput_of(run_of(path, trainer))


def test_a_job_whose_first_step_was_not_completed_has_no_goodput(tmp_path: Path) -> None:
    begun = (("step", 1), 0, -1)
    found = took_samples(tmp_path / "a", begun, (Stage.LOGPROB, 5, 6))
    assert found.handed_only
    assert math.isnan(found.useful_tokens_per_device_s)
    assert found.trained.tokens == 0
    assert found.generated_tokens == 18
    seen = took_samples(tmp_path / "b", begun, (Stage.TRAIN, 5, 6))
    assert not seen.handed_only
    assert math.isnan(seen.useful_tokens_per_device_s)


def test_a_job_without_steps_still_has_a_goodput(tmp_path: Path) -> None:
    found = took_samples(tmp_path, (Stage.LOGPROB, 0, 6))
    assert not found.handed_only
    assert found.useful_tokens_per_device_s > 0


def test_a_sample_that_is_seen_twice_counts_once(tmp_path: Path) -> None:
    trainer, server = learner((0, 0, 10)), process("rollout")
    for seen_in in (trainer, server):
        rows(
            seen_in,
            "trajectories",
            start_s=[1],
            end_s=[2],
            trajectory=[7],
            first_version=[3],
            response_tokens=[50],
        )
    rows(
        trainer,
        "uses",
        time_s=[3, 5],  # two epochs over one batch
        trajectory=[7, 7],
        version=[4, 4],
        fate=[Fate.TRAINED] * 2,
        tokens=[50, 50],
    )
    run = run_of(tmp_path, trainer, server)
    assert [(b.lag, b.trajectories, b.tokens) for b in staleness(run).by_first_token] == [
        (1, 1, 50)
    ]
    found = goodput_of(run)
    assert found.generated_tokens == found.trained.tokens == 50


def test_samples_without_an_id_each_count(tmp_path: Path) -> None:
    trainer = learner((0, 0, 10))
    uses = {"version": [1, 1], "fate": [Fate.TRAINED] * 2, "tokens": [5, 6]}
    rows(trainer, "uses", time_s=[3, 3], trajectory=[-1, -1], **uses)
    run = run_of(tmp_path, trainer)
    assert staleness(run).trajectories == 2
    assert goodput_of(run).trained.tokens == 11


@pytest.mark.parametrize(
    ("used", "never"),
    [([-1, -1, -1], 0), ([-1, -1], 10), ([1, -1], 10), ([1, 2, 3], 0), ([], 30)],
    ids=["all", "some", "mixed", "by-id", "none"],
)
def test_uses_without_an_id_are_of_samples_that_were_generated(
    tmp_path: Path, used: list[int], never: int
) -> None:
    trainer = learner((0, 0, 10))
    made = {"trajectory": [1, 2, 3], "response_tokens": [10, 10, 10]}
    rows(trainer, "trajectories", start_s=[1.0] * 3, end_s=[2.0] * 3, **made)
    uses = {"trajectory": [*used, 9], "fate": [Fate.TRAINED] * len(used) + [Fate.STALE]}
    rows(trainer, "uses", time_s=[3.0] * (len(used) + 1), tokens=[10] * len(used) + [0], **uses)
    found = goodput_of(run_of(tmp_path, trainer))
    assert found.generated_tokens == 30
    assert {one.reason: one.tokens for one in found.losses}.get("never used", 0) == never


def test_advantage_is_zero_where_a_group_got_one_reward_and_unknown_without_rewards(
    tmp_path: Path,
) -> None:
    trainer = learner((0, 0, 10))
    n = range(8)
    rows(
        trainer,
        "trajectories",
        start_s=[1.0] * 8,
        end_s=[2.0] * 8,
        trajectory=list(n),
        group=[1, 1, 2, 2, 3, 3, 4, 4],
        response_tokens=[1, 2, 4, 8, 16, 32, 64, 128],
    )
    rows(
        trainer,
        "rewards",
        start_s=[2.0] * 7,
        end_s=[3.0] * 7,
        trajectory=[0, 1, 2, 3, 4, 6, 7],  # only one verdict in group 3
        component=["format", "format", "format", "format", "correct", "correct", "correct"],
        value=[1.0, 1.0, 0.0, 1.0, 1.0, math.nan, 1.0],  # and one that says nothing in group 4
    )
    rows(trainer, "uses", time_s=[5.0] * 8, trajectory=list(n), fate=[Fate.TRAINED] * 8)
    trained = goodput_of(run_of(tmp_path, trainer)).trained
    assert trained.tokens == 255
    assert trained.zero_advantage_tokens == 1 + 2
    assert trained.unknown_advantage_tokens == 16 + 32 + 64 + 128
    assert trained.useful_tokens == 255 - 3
    assert trained.useful_known_tokens == 4 + 8


def test_samples_that_no_learner_met_say_how_they_ended(tmp_path: Path) -> None:
    trainer = learner((0, 0, 10))
    rows(
        trainer,
        "trajectories",
        start_s=[1, 1, 1],
        end_s=[2, 2, 2],
        trajectory=[1, 2, 3],
        response_tokens=[10, 20, 40],
        finish=[Finish.STOP, Finish.ABORT, Finish.STOP],
    )
    rows(trainer, "uses", time_s=[3, 3], trajectory=[3, 4], fate=[Fate.TRAINED, -1], tokens=[40, 5])
    losses = goodput_of(run_of(tmp_path, trainer)).losses
    assert {loss.reason: loss.tokens for loss in losses} == {
        "never used (abort)": 20,
        "never used": 10,
        "unknown fate": 5,
    }


def test_goodput_needs_a_learner_that_says_what_it_trained_on(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", (Stage.TRAIN, 0, 1)))
    assert goodput(run, find_steps(run, (at(0), at(1))), None) is None
