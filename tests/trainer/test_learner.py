"""The learner: what it trains, what it reports, and how it goes on from a state."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
import time
from typing import Any

import numpy as np
import pytest
import torch

from rltrace.testing.inside.trainer import (
    OBJECTIVES,
    Request,
    RolloutWorker,
    Sample,
    TrainerConfig,
    Trajectory,
    initial_weights,
    response_log_probs,
    task_of,
)
from rltrace.trainer.learner import Learner, Reference


def trajectories(config: TrainerConfig, count: int) -> list[Trajectory]:
    prompts = task_of(config).prompts(count, "0")
    requests = [Request(f"r{i}", "g", 0, prompt) for i, prompt in enumerate(prompts)]
    worker = RolloutWorker(config, 0, initial_weights(config))
    return asyncio.run(worker.generate(requests))


def samples(config: TrainerConfig, advantages: list[float]) -> list[Sample]:
    """With what the placements compute before they train."""
    done = trajectories(config, len(advantages))
    reference = Reference(config, 0, initial_weights(config)).log_probs(done)
    return [
        Sample(trajectory, 0.5, advantage, log_probs, log_probs)
        for trajectory, advantage, log_probs in zip(done, advantages, reference, strict=True)
    ]


def learner(config: TrainerConfig) -> Learner:
    return Learner(config, 0, initial_weights(config))


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_every_sample_is_used_once_and_accounted_for(small: TrainerConfig) -> None:
    batch = samples(small, [1.0, -0.5, -1.0, 0.25, 0.5])
    report = learner(small).train(4, batch)
    uses = {use.trajectory: use for use in report.uses}
    assert sorted(uses) == sorted(s.trajectory.id for s in batch)
    assert len(report.uses) == 5
    for sample in batch:
        use = uses[sample.trajectory.id]
        assert (use.fate, use.lag, use.version) == ("trained", 0, 0)
        assert use.tokens == len(sample.trajectory.tokens)
    assert report.tokens == sum(use.tokens for use in report.uses)
    assert (report.step, report.version, report.updates) == (4, 0, small.minibatches)


def test_fewer_samples_than_minibatches_make_fewer_updates(small: TrainerConfig) -> None:
    many = dataclasses.replace(small, minibatches=10)
    report = learner(many).train(0, samples(many, [1.0, -1.0, 0.5]))
    assert report.updates == len(report.uses) == 3


def test_nothing_to_train_on_changes_nothing(small: TrainerConfig) -> None:
    trained = learner(small)
    before = weights(trained)
    report = trained.train(0, [])
    assert (report.updates, report.uses, report.tokens) == (0, [], 0)
    assert math.isnan(report.loss)
    assert same(before, weights(trained))


def test_on_policy_ratios_of_the_first_minibatch_are_one(small: TrainerConfig) -> None:
    one_update = dataclasses.replace(small, minibatches=1)
    for use in learner(one_update).train(0, samples(small, [1.0, -1.0, 2.0])).uses:
        assert use.mean_log_ratio == pytest.approx(0, abs=1e-5)
        assert use.clip_share == 0
        assert use.sum_w == pytest.approx(use.tokens, rel=1e-4)
        assert use.sum_w_squared == pytest.approx(use.tokens, rel=1e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_makes_rewarded_samples_likelier_and_others_less_so(
    small: TrainerConfig, name: str
) -> None:
    config = dataclasses.replace(small, objective=name)
    batch = samples(config, [1.0, -1.0] * 4)
    trained = learner(config)
    losses = [trained.train(step, batch).loss for step in range(4)]
    assert losses[-1] < losses[0] or name == "tis"  # its value is no loss that must fall
    after = response_log_probs(trained.model, [s.trajectory for s in batch])
    gained = [
        np.sign(s.advantage) * (new - s.trajectory.log_probs).sum()
        for s, new in zip(batch, after, strict=True)
    ]
    assert np.mean(gained) > 0.1


@pytest.mark.parametrize("name", OBJECTIVES)
def test_without_a_learning_rate_the_weights_stay(small: TrainerConfig, name: str) -> None:
    still = dataclasses.replace(small, objective=name, learning_rate=0.0)
    trained = learner(still)
    before = weights(trained)
    report = trained.train(0, samples(still, [1.0, -1.0, 0.5, 2.0]))
    assert report.updates == small.minibatches
    assert same(before, weights(trained))


def test_the_kl_term_alone_pulls_the_policy_back_to_the_reference(small: TrainerConfig) -> None:
    settings = dataclasses.replace(small, kl_coefficient=10.0, minibatches=1, learning_rate=1e-3)
    batch = samples(settings, [0.0] * 8)
    trained = learner(settings)
    with torch.no_grad():
        trained.model.head.weight += 0.1 * torch.randn(
            trained.model.head.weight.shape, generator=torch.Generator().manual_seed(0)
        )
    divergences = [trained.train(step, batch).kl for step in range(10)]
    assert divergences[0] > 0.001
    assert divergences[-1] < divergences[0] / 2


def test_recomputed_old_log_probs_are_what_the_clip_holds_to(small: TrainerConfig) -> None:
    """Without them, samples of a policy far away are clipped at once."""
    settings = dataclasses.replace(small, minibatches=1, recompute_old=True)
    batch = samples(settings, [1.0] * 8)
    moved = learner(settings)
    with torch.no_grad():
        moved.model.head.weight *= -20
    state = copy.deepcopy(moved.state())
    recomputed = moved.old_log_probs([s.trajectory for s in batch])
    shares = {}
    for name in ("behaviour", "recomputed"):
        for sample, log_probs in zip(batch, recomputed, strict=True):
            sample.proximal = log_probs if name == "recomputed" else None
        moved.restore(copy.deepcopy(state), 0)
        uses = moved.train(0, batch).uses
        shares[name] = np.mean([use.clip_share for use in uses])
        assert all(abs(use.mean_log_ratio) > 0.01 for use in uses)  # from the sampler, always
    assert shares["recomputed"] == 0 < shares["behaviour"]


def test_of_text_only_samples_the_policy_before_the_step_stands_for_the_sampler(
    small: TrainerConfig,
) -> None:
    settings = dataclasses.replace(small, minibatches=1, retokenize=True, merges=2)
    batch = samples(settings, [1.0, -1.0, 0.5])
    assert not any(s.trajectory.faithful for s in batch)
    for name in OBJECTIVES:
        report = learner(dataclasses.replace(settings, objective=name)).train(0, batch)
        assert math.isfinite(report.loss)
        for use in report.uses:
            assert use.mean_log_ratio == pytest.approx(0, abs=1e-5)


def test_a_tool_s_tokens_are_not_trained_on(small: TrainerConfig) -> None:
    settings = dataclasses.replace(small, kl_coefficient=0.0, minibatches=1)
    batch = samples(settings, [1.0] * 6)
    told: list[Sample] = []
    for s in batch:
        kept = np.arange(len(s.trajectory.tokens)) != 1
        told.append(
            dataclasses.replace(
                s,
                trajectory=dataclasses.replace(
                    s.trajectory, generated=kept, log_probs=s.trajectory.log_probs[kept]
                ),
                reference=None if s.reference is None else s.reference[kept],
                proximal=None if s.proximal is None else s.proximal[kept],
            )
        )
    assert any(len(s.trajectory.tokens) > 1 for s in batch)
    told = [s for s in told if s.trajectory.response_tokens]
    report = learner(settings).train(0, told)
    assert report.tokens == sum(s.trajectory.response_tokens for s in told)
    assert report.tokens < sum(len(s.trajectory.tokens) for s in told)
    for use in report.uses:
        assert use.sum_w == pytest.approx(use.tokens, rel=1e-4)


def test_lag_counts_published_versions_since_the_first_token(small: TrainerConfig) -> None:
    trained = learner(small)
    trained.restore(None, version=5)
    old = [
        dataclasses.replace(
            s, trajectory=dataclasses.replace(s.trajectory, first_version=2, last_version=4)
        )
        for s in samples(small, [1.0, -1.0])
    ]
    report = trained.train(0, old)
    assert report.version == 5
    assert [(use.lag, use.in_flight, use.in_queue) for use in report.uses] == [(3, 2, 1)] * 2


def test_a_restored_learner_goes_on_bit_for_bit_with_its_optimizer(small: TrainerConfig) -> None:
    batches = [samples(small, [1.0, -1.0, 0.5, step - 1.0]) for step in range(4)]
    straight = learner(small)
    for step in range(2):
        straight.train(step, batches[step])
    state, version = copy.deepcopy(straight.state()), 2

    def finished(trained: Learner) -> tuple[dict[str, torch.Tensor], list[float]]:
        losses = [trained.train(step, batches[step]).loss for step in (2, 3)]
        return weights(trained), losses

    expected, losses = finished(straight)
    resumed = learner(small)
    resumed.restore(copy.deepcopy(state), version)
    assert resumed.version == version
    found, found_losses = finished(resumed)
    assert found_losses == losses
    assert same(found, expected)

    forgetful = learner(small)  # the weights alone are not enough
    forgetful.model.load_state_dict(state["model"])
    assert not same(finished(forgetful)[0], expected)


def test_the_order_of_samples_differs_from_step_to_step(
    small: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = samples(small, [1.0, -1.0] * 8)
    orders: list[list[str]] = []
    update = Learner.update

    def noted(self: Learner, minibatch: list[Sample]) -> Any:
        orders[-1].extend(s.trajectory.id for s in minibatch)
        return update(self, minibatch)

    monkeypatch.setattr(Learner, "update", noted)
    for step in (0, 1, 0):
        orders.append([])
        learner(small).train(step, batch)
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_an_update_takes_at_least_its_floor(
    small: TrainerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = samples(small, [1.0, -1.0])
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    learner(dataclasses.replace(small, update_floor=7.0)).train(0, batch)
    assert len(slept) == 2
    assert all(0 < seconds <= 7.0 for seconds in slept)
