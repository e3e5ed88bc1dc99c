"""What follows a sample from generation to the learner: lag, goodput, lost tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.walls.decode import long_tail
from rltrace.analysis.walls.wall import walls
from rltrace.testing import Process, process, run_of
from rltrace.testing.inside.analysis import (
    Goodput,
    RunAnalysis,
    Staleness,
    count_devices,
    freshness,
    goodput,
    staleness,
)
from rltrace.testing.inside.trace import Fate, Finish, Stage
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.analysis.made import not_none, rows, steps_of

TRAINED = Fate.TRAINED
WORKLOADS: list[dict[str, Any]] = [
    {},
    {"placement": "one-step-off"},
    {"placement": "async", "mixed": 0.3, "unknown_versions": 0.1},
    {"placement": "async", "kill_step": 5, "torn": True, "nodes": 2},
    {"zero_groups": 0.4, "zero_groups_dropped": True, "dropped": (("failed", 0.1),)},
]


def goodput_of(run: Run, **options: Any) -> Goodput:
    return not_none(goodput(run, steps_of(run), **{"price_usd_per_hour": None, **options}))


@pytest.mark.parametrize("knobs", WORKLOADS, ids=str)
def test_lags_are_the_truth(synthetic: Any, knobs: dict[str, Any]) -> None:
    run, truth = synthetic(**knobs)
    found = staleness(run)
    bars = {"unknown" if b.lag is None else str(b.lag): b for b in found.by_first_token}
    assert {key: bar.trajectories for key, bar in bars.items()} == truth.lag_trajectories
    assert {key: bar.tokens for key, bar in bars.items()} == truth.lag_tokens
    known = sum(n for key, n in truth.lag_trajectories.items() if key != "unknown")
    assert found.known_trajectories == found.version_known_uses == known
    assert found.mixed_share * known == pytest.approx(truth.mixed_trajectories)
    total = sum(int(k) * n for k, n in truth.lag_trajectories.items() if k != "unknown")
    assert found.mean_lag == pytest.approx(total / known)
    assert found.mean_lag_in_flight + found.mean_lag_in_queue == pytest.approx(found.mean_lag)
    assert (found.mean_lag_in_flight > 0) == (truth.mixed_trajectories > 0)


@pytest.mark.parametrize("knobs", WORKLOADS, ids=str)
def test_goodput_is_the_truth(synthetic: Any, knobs: dict[str, Any]) -> None:
    run, truth = synthetic(**{"sigma": 0.3, "reward_sigma": 0.1, **knobs})
    found = goodput_of(run)
    assert (found.devices.kind, found.devices.count) == ("GPU", truth.gpus)
    assert found.window_s == pytest.approx(truth.steady_s, abs=1e-6)
    trained = found.trained
    assert trained.useful_tokens == trained.useful_known_tokens == truth.steady_useful_tokens
    assert trained.tokens - trained.zero_advantage_tokens == trained.useful_tokens
    assert found.useful_tokens_per_device_s == pytest.approx(truth.goodput_tokens_per_gpu_s)
    # Every token is accounted for.
    lost = {loss.reason: loss.tokens for loss in found.losses if loss.tokens}
    dropped = {k: n for k, n in truth.tokens_by_fate.items() if k != "trained"}
    if truth.never_used_tokens:
        dropped["never used"] = truth.never_used_tokens
    assert lost == dropped
    assert found.generated_tokens == truth.generated_tokens
    trained_tokens = found.trained_share * found.generated_tokens
    assert trained_tokens == pytest.approx(truth.tokens_by_fate["trained"])
    assert trained_tokens + sum(lost.values()) == pytest.approx(found.generated_tokens)


def loop(path: Path, before_s: float = 0.0, said_from: int = 1, **job: Any) -> Run:
    """A loop that generates, trains and updates the weights in 10 s, a sample a step, and says the
    version of the last of its `updates` from step `said_from` on. `used` are the versions of its
    uses, where those are others; `before_s` is by how much updates are earlier."""
    updates, used = job.get("updates", (1, 2, 3)), job.get("used")
    n = len(updates)
    ids, moments = list(range(n)), [10.0 * i for i in range(n)]
    first = [updates[i - 1] if i and i >= said_from else -1 for i in ids]
    made = process("driver", *((("step", i), 10 * i, 10 * i + 10) for i in ids))
    rows(made, "trajectories", start_s=[t + 1 for t in moments], end_s=[t + 4 for t in moments],
         trajectory=ids, first_version=first, last_version=first, response_tokens=10)  # fmt: skip
    rows(made, "uses", time_s=[t + 6 for t in moments], trajectory=ids, step=ids, tokens=10,
         version=list(used or first), fate=TRAINED)  # fmt: skip
    rows(made, "syncs", start_s=[t + 8 - before_s for t in moments],
         end_s=[t + 9 - before_s for t in moments], version=list(updates))  # fmt: skip
    return run_of(path, made)


@pytest.mark.parametrize(
    ("job", "lags"),
    [
        pytest.param({}, [(0, 3)], id="from 1"),
        pytest.param({"updates": (1,)}, [(0, 1)], id="one update"),
        pytest.param({"updates": (7, 8, 9)}, [(0, 3)], id="resumed"),
        pytest.param({"used": (0, 1, 2)}, [(0, 3)], id="uses are told"),
        pytest.param({"updates": (4, 8, 12)}, None, id="counted in fours"),
        pytest.param({"updates": (7,)}, None, id="one update of an unknown count"),
        pytest.param({"updates": (0, 1, 2)}, None, id="from 0"),
        pytest.param({"updates": (2, 1, 3)}, None, id="not in order"),
        pytest.param({"used": (5, 1, 2)}, None, id="uses of another version"),
        pytest.param({"before_s": 5}, None, id="an update while it was generated"),
        pytest.param({"before_s": 2.5}, None, id="weights loaded before anything was trained on"),
        pytest.param({"said_from": 2}, None, id="versions not said after updates either"),
    ],
)
def test_what_was_made_before_the_first_update_is_of_the_version_before_it_if_that_is_clear(
    tmp_path: Path, job: dict[str, Any], lags: list[Any] | None
) -> None:
    run = loop(tmp_path, **job)
    bars = [(bar.lag, bar.trajectories) for bar in staleness(run).by_first_token]
    unknown_tokens = goodput_of(run).trained.unknown_lag_tokens
    if lags is None:
        assert bars[-1][0] is None
        assert unknown_tokens == 10 * bars[-1][1] > 0
    else:
        assert (bars, unknown_tokens) == (lags, 0)
        assert freshness(run, staleness(run)).unit.learner_steps == 1


def test_a_lag_budget_is_a_condition_of_its_own(synthetic: Any) -> None:
    run, _ = synthetic(placement="async", unknown_versions=0.2, zero_groups=0.0, sigma=0.3)
    whole, found = goodput_of(run).trained, goodput_of(run, lag_budget=1).trained
    assert whole.over_lag_budget_tokens == 0 < found.over_lag_budget_tokens
    assert found.tokens == whole.tokens
    assert found.useful_tokens == found.tokens - found.over_lag_budget_tokens
    # An unknown lag is counted as useful and said to be unknown, so there is a range.
    assert found.unknown_lag_tokens > 0
    assert found.useful_known_tokens == found.useful_tokens - found.unknown_lag_tokens


def test_prices_are_dated_ranges_that_a_user_can_override(synthetic: Any) -> None:
    run, _ = synthetic()
    listed = goodput_of(run)
    price = not_none(listed.price)
    assert price.date == "2026-05-20"
    assert price.low_usd_per_hour < price.usd_per_hour < price.high_usd_per_hour
    expected = listed.useful_tokens_per_device_s * 3600 / price.usd_per_hour
    assert listed.useful_tokens_per_usd() == pytest.approx(expected)
    own = goodput_of(run, price_usd_per_hour=1.0)
    assert not_none(own.price).date == ""
    assert own.useful_tokens_per_usd() == pytest.approx(own.useful_tokens_per_device_s * 3600)


@pytest.mark.parametrize(
    ("knobs", "kind", "count"),
    [
        ({"gpu_name": "Voodoo 2"}, "GPU", 8),
        ({"gpus": 0, "nodes": 2, "cores_per_node": 12}, "core", 24),
    ],
    ids=["a GPU that no table knows", "the cores of all nodes"],
)
def test_what_has_no_price(synthetic: Any, knobs: dict[str, Any], kind: str, count: int) -> None:
    found = goodput_of(synthetic(**knobs)[0])
    assert (found.devices.kind, found.devices.count, found.price) == (kind, count, None)
    assert math.isnan(found.useful_tokens_per_usd())


def test_gpus_that_no_driver_shows_are_told_as_logical(tmp_path: Path) -> None:
    learner = process("learner", (("step", 0), 0, 10), devices=(0,))
    seen = count_devices(run_of(tmp_path / "a", learner, process("agent")))
    assert (seen.kind, seen.count) == ("logical GPU", 1)
    assert "NVML" in seen.source
    nobody_looked = count_devices(run_of(tmp_path / "b", learner))
    assert (nobody_looked.kind, nobody_looked.count) == ("GPU", 1)


@pytest.fixture
def trainer() -> Process:
    """A learner of one step, of 10 s."""
    return process("learner", (("step", 0), 0, 10))


def lags_of(found: Staleness) -> list[tuple[int | None, int, int]]:
    return [(bar.lag, bar.trajectories, bar.tokens) for bar in found.by_first_token]


def test_versions_that_nobody_recorded_stay_unknown(tmp_path: Path, trainer: Process) -> None:
    rows(trainer, "trajectories", start_s=1, end_s=2, trajectory=[1, 2, 3],
         first_version=[-1, 4, 4], response_tokens=[10, 20, 40])  # fmt: skip
    # 4 was trained on and its generation never seen
    rows(trainer, "uses", time_s=5, trajectory=[1, 2, 3, 4], version=[5, -1, 5, 5], fate=TRAINED)
    found = staleness(run_of(tmp_path, trainer))
    assert lags_of(found) == [(1, 1, 40), (None, 3, 53)]  # 4 is as long as the others
    assert found.mean_lag == 1
    assert math.isnan(found.mixed_share)


@pytest.mark.parametrize(
    ("spans", "handed_only", "has_goodput"),
    [
        ([(("step", 1), 0, -1), (Stage.LOGPROB, 5, 6)], True, False),
        ([(("step", 1), 0, -1), (Stage.TRAIN, 5, 6)], False, False),
        ([(Stage.LOGPROB, 0, 6)], False, True),
    ],
    ids=["handed over", "trained in a step that was not completed", "without steps"],
)
def test_a_job_whose_first_step_was_not_completed_has_no_goodput(
    tmp_path: Path, spans: list[Any], handed_only: bool, has_goodput: bool
) -> None:
    learner = process("learner", *spans)
    rows(learner, "uses", time_s=5, trajectory=[1, 2], fate=TRAINED, tokens=9)
    found = goodput_of(run_of(tmp_path, learner))
    assert found.handed_only is handed_only
    assert (found.useful_tokens_per_device_s > 0) is has_goodput
    assert math.isnan(found.useful_tokens_per_device_s) is not has_goodput
    assert found.trained.tokens == (18 if has_goodput else 0)
    assert found.generated_tokens == 18


def test_a_sample_that_is_seen_twice_counts_once_and_each_without_an_id(
    tmp_path: Path, trainer: Process
) -> None:
    server = process("rollout")
    for seen_in in (trainer, server):
        rows(seen_in, "trajectories", start_s=1, end_s=2, trajectory=7, first_version=3,
             response_tokens=50)  # fmt: skip
    # two epochs over one batch
    rows(trainer, "uses", time_s=[3, 5], trajectory=7, version=4, fate=TRAINED, tokens=50)
    run = run_of(tmp_path, trainer, server)
    assert lags_of(staleness(run)) == [(1, 1, 50)]
    found = goodput_of(run)
    assert found.generated_tokens == found.trained.tokens == 50
    rows(trainer, "uses", time_s=3, trajectory=-1, version=1, fate=TRAINED, tokens=[5, 6])
    run = run_of(tmp_path / "without", trainer, server)
    assert staleness(run).trajectories == 1 + 2
    assert goodput_of(run).trained.tokens == 50 + 11


@pytest.mark.parametrize(
    ("used", "never"),
    [([-1, -1, -1], 0), ([-1, -1], 10), ([1, -1], 10), ([1, 2, 3], 0), ([], 30)],
    ids=["all", "some", "mixed", "by-id", "none"],
)
def test_uses_without_an_id_are_of_samples_that_were_generated(
    tmp_path: Path, trainer: Process, used: list[int], never: int
) -> None:
    rows(trainer, "trajectories", start_s=1.0, end_s=2.0, trajectory=[1, 2, 3, 9],
         response_tokens=[10, 10, 10, 0])  # fmt: skip
    n = len(used)
    rows(trainer, "uses", time_s=3.0, tokens=[10] * n + [0], trajectory=[*used, 9],
         fate=[TRAINED] * n + [Fate.STALE])  # fmt: skip
    found = goodput_of(run_of(tmp_path, trainer))
    assert found.generated_tokens == 30
    assert {one.reason: one.tokens for one in found.losses}.get("never used", 0) == never


def test_ids_that_nobody_generated_double_no_sample(tmp_path: Path, trainer: Process) -> None:
    rows(trainer, "trajectories", start_s=1.0, end_s=2.0, trajectory=[1, 2], response_tokens=10)
    rows(trainer, "uses", time_s=3.0, trajectory=[3, 4], fate=TRAINED, tokens=10)
    found = goodput_of(run_of(tmp_path, trainer))
    assert (found.generated_samples, found.trained_share) == (2, 1.0)


def test_what_the_loss_leaves_out_was_generated_and_not_trained_on(
    tmp_path: Path, trainer: Process
) -> None:
    rows(trainer, "trajectories", start_s=1.0, end_s=2.0, trajectory=[1, 2], response_tokens=10)
    rows(trainer, "uses", time_s=3.0, trajectory=[1, 2], fate=[TRAINED, Fate.STALE], tokens=4)
    found = goodput_of(run_of(tmp_path, trainer))
    assert (found.generated_samples, found.generated_tokens, found.trained.tokens) == (2, 20, 4)
    assert [(one.samples, one.tokens) for one in found.losses] == [(1, 10), (0, 6)]


def test_of_dropped_samples_nothing_is_taken_for_those_that_were_trained_on(
    tmp_path: Path, trainer: Process
) -> None:
    rows(trainer, "trajectories", start_s=1.0, end_s=2.0, trajectory=[1, 2])
    rows(trainer, "uses", time_s=3.0, trajectory=[1, 2], fate=[TRAINED, Fate.STALE], tokens=[-1, 9])
    found = goodput_of(run_of(tmp_path, trainer))
    assert (found.trained.tokens, found.trained.is_counted) == (0, False)
    assert math.isnan(found.trained_share)


def test_advantage_is_zero_where_a_group_got_one_reward_and_unknown_without_rewards(
    tmp_path: Path, trainer: Process
) -> None:
    ids = list(range(8))
    rows(trainer, "trajectories", start_s=1.0, end_s=2.0, trajectory=ids,
         group=[1, 1, 2, 2, 3, 3, 4, 4], response_tokens=[1 << i for i in ids])  # fmt: skip
    # Only one verdict in group 3, and one that says nothing in group 4.
    rows(trainer, "rewards", start_s=2.0, end_s=3.0, trajectory=[0, 1, 2, 3, 4, 6, 7],
         component=["format"] * 4 + ["correct"] * 3,
         value=[1.0, 1.0, 0.0, 1.0, 1.0, math.nan, 1.0])  # fmt: skip
    rows(trainer, "uses", time_s=5.0, trajectory=ids, fate=TRAINED)
    trained = goodput_of(run_of(tmp_path, trainer)).trained
    assert trained.tokens == 255
    assert trained.zero_advantage_tokens == 1 + 2
    assert trained.unknown_advantage_tokens == 16 + 32 + 64 + 128
    assert trained.useful_tokens == 255 - 3
    assert trained.useful_known_tokens == 4 + 8


def test_samples_that_no_learner_met_say_how_they_ended(tmp_path: Path, trainer: Process) -> None:
    rows(trainer, "trajectories", start_s=1, end_s=2, trajectory=[1, 2, 3],
         response_tokens=[10, 20, 40], finish=[Finish.STOP, Finish.ABORT, Finish.STOP])  # fmt: skip
    rows(trainer, "uses", time_s=3, trajectory=[3, 4], fate=[TRAINED, -1], tokens=[40, 5])
    losses = {loss.reason: loss.tokens for loss in goodput_of(run_of(tmp_path, trainer)).losses}
    assert losses == {"never used (abort)": 20, "never used": 10, "unknown fate": 5}
    none = run_of(tmp_path / "none", process("driver", (Stage.TRAIN, 0, 1)))
    assert goodput(none, steps_of(none), None) is None  # nobody says what was trained on


@pytest.mark.parametrize(("ahead_s", "lags"), [(0, {0: 8}), (6, {None: 8})], ids=["turns", "ahead"])
def test_an_id_that_comes_again_is_of_another_sample_or_of_one_that_is_not_known(
    tmp_path: Path, ahead_s: float, lags: dict[int | None, int]
) -> None:
    made = process("driver", *((("step", n), 10 * n, 10 * n + 10) for n in range(4)))
    for n in range(4):
        begin = 10 * n + 1 - ahead_s
        rows(made, "trajectories", start_s=[begin] * 2, end_s=[begin + 4] * 2, trajectory=[1, 2],
             group=1, first_version=n, last_version=n, response_tokens=10)  # fmt: skip
        rows(made, "rewards", start_s=[10 * n + 6.0] * 2, end_s=[10 * n + 6.0] * 2,
             trajectory=[1, 2], value=[0.0, 1.0], outcome=0)  # fmt: skip
        rows(made, "uses", time_s=[10 * n + 8.0] * 2, trajectory=[1, 2], step=n, version=n,
             fate=TRAINED)  # fmt: skip
    of = RunAnalysis(run_of(tmp_path, made))
    assert {bar.lag: bar.trajectories for bar in of.staleness.by_first_token} == lags
    assert [alarm.kind for alarm in of.health.alarms] == ["ids"]
    assert not_none(of.goodput).trained.useful_tokens == 80


@pytest.mark.parametrize(
    ("lengths", "named", "tokens"),
    [([10, -1], True, 80), ([10, 30], False, 160), ([-1, -1], True, 0)],
    ids=["half of them", "uses without ids", "none"],
)
def test_what_nobody_counted_is_as_long_as_the_others_or_unknown(
    tmp_path: Path, lengths: list[int], named: bool, tokens: int
) -> None:
    made = process("driver", *((("step", n), 10 * n, 10 * n + 10) for n in range(4)))
    for n in range(4):
        ids = [2 * n, 2 * n + 1]
        rows(made, "trajectories", start_s=[10 * n + 1.0] * 2, end_s=[10 * n + 4.0] * 2,
             trajectory=ids, first_version=n, response_tokens=lengths)  # fmt: skip
        rows(made, "uses", time_s=[10 * n + 8.0] * 2, trajectory=ids if named else -1, step=n,
             version=n, fate=TRAINED)  # fmt: skip
    of = RunAnalysis(run_of(tmp_path, made))
    assert long_tail(of).cost.share == pytest.approx(0, abs=1e-9)  # no slot is ever idle
    rates = {figure.name: figure.value for figure in walls()["rollout"].test(of).evidence}
    assert rates.get("tokens while generating", 0) == pytest.approx(tokens / 4 / 3)
    found = not_none(of.goodput)
    assert (found.trained.samples, found.trained.tokens) == (8, tokens)
    assert found.trained.uncounted_samples == (8 if not named else 4 * lengths.count(-1))
    assert math.isnan(found.useful_tokens_per_device_s) == (not tokens)
