"""Short real runs on Ray: the ledger adds up, and the policy learns."""

from __future__ import annotations

import dataclasses
import json

import pytest
import ray

from rltrace.trainer import Ledger, StepRecord, TrainerConfig, TrainerError, train
from rltrace.trainer.roles import policy_of
from tests.trainer.conftest import SMALL


@dataclasses.dataclass
class Run:
    """A finished run, and the records as they came."""

    ledger: Ledger
    seen: list[StepRecord]


@pytest.fixture(scope="module")
def short_run(cluster: None) -> Run:
    seen: list[StepRecord] = []
    return Run(train(SMALL, on_step=seen.append), seen)


def without_times(record: StepRecord) -> StepRecord:
    return dataclasses.replace(record, seconds=0.0, stage_seconds={})


def test_the_ledger_adds_up(short_run: Run) -> None:
    config, records = short_run.ledger.config, short_run.ledger.steps
    bytes_of_weights = 4 * sum(p.numel() for p in policy_of(config).parameters())
    assert short_run.ledger.parameters * 4 == bytes_of_weights
    assert [record.step for record in records] == [0, 1, 2]
    assert [record.version for record in records] == [0, 1, 2]
    for record in records:
        assert record.samples == config.prompts * config.samples
        assert sum(record.finish.values()) == record.samples
        assert sum(record.lags.values()) + sum(record.drops.values()) == record.samples
        assert set(record.lags) == {0}  # strictly on policy
        assert sum(record.lags.values()) <= record.tokens_trained <= record.tokens_generated
        assert 0 < record.reward < 1
        assert record.optimizer_updates == config.minibatches
        # padding to aligned starts is all that comes on top of the weights
        received = record.sync_bytes // config.rollout_workers
        assert received == pytest.approx(bytes_of_weights, rel=0.05)
        assert sum(record.stage_seconds.values()) <= record.seconds
    assert sum(record.seconds for record in records) <= short_run.ledger.seconds


def test_every_step_is_reported_as_it_ends_and_the_ledger_is_written_as_json(
    short_run: Run,
) -> None:
    assert short_run.seen == short_run.ledger.steps
    written = json.loads(short_run.ledger.to_json())
    assert written["config"]["seed"] == SMALL.seed
    assert [s["tokens_trained"] for s in written["steps"]] == [
        record.tokens_trained for record in short_run.seen
    ]
    assert written["steps"][0]["lags"] == {"0": short_run.seen[0].lags[0]}


def test_the_same_seed_gives_the_same_run(short_run: Run) -> None:
    again = train(SMALL)
    first = [without_times(record) for record in short_run.ledger.steps]
    assert [without_times(record) for record in again.steps] == first


def test_other_numbers_of_workers_and_another_seed(short_run: Run) -> None:
    config = dataclasses.replace(SMALL, steps=1, seed=1, reward_workers=2, rollout_workers=1)
    (record,) = train(config).steps
    assert sum(record.lags.values()) + sum(record.drops.values()) == record.samples == 16
    assert record.reward != short_run.ledger.steps[0].reward


@pytest.mark.usefixtures("cluster")
def test_the_policy_learns_and_without_a_learning_rate_it_does_not() -> None:
    easy = TrainerConfig(
        steps=30, task="copy", symbols=3, shortest=2, longest=2, max_response=6, prompts=8,
        samples=8, max_running=32, width=64, layers=2, learning_rate=3e-3,
    )  # fmt: skip
    assert train(easy).reward_rise() > 0.3
    assert abs(train(dataclasses.replace(easy, learning_rate=0.0)).reward_rise()) < 0.1


@pytest.mark.usefixtures("cluster")
def test_too_small_a_cluster_is_refused() -> None:
    have = int(ray.cluster_resources()["CPU"])
    with pytest.raises(TrainerError, match=f"has {have} CPUs but the job needs {have + 1}, one"):
        train(dataclasses.replace(SMALL, rollout_workers=have - 2))
