"""The learner: what it trains, what it reports, and how it goes on from a state."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rltrace.testing.inside.trainer import (
    OBJECTIVES,
    Checkpoint,
    Request,
    RolloutWorker,
    Sample,
    TrainerConfig,
    Trajectory,
    initial_weights,
    response_log_probs,
    task_of,
)
from rltrace.trainer.learning.learner import Learner, Reference


def trajectories(config: TrainerConfig, count: int) -> list[Trajectory]:
    prompts = task_of(config).prompts(count, "0")
    requests = [Request(f"r{i}", "g", prompt) for i, prompt in enumerate(prompts)]
    worker = RolloutWorker(config, 0, initial_weights(config))
    return asyncio.run(worker.generate(requests))


def scored(config: TrainerConfig, done: list[Trajectory], advantages: list[float]) -> list[Sample]:
    """With what the placements compute before they train."""
    reference = Reference(config, 0, initial_weights(config)).log_probs(done)
    return [
        Sample(trajectory, 0.5, advantage, log_probs, log_probs)
        for trajectory, advantage, log_probs in zip(done, advantages, reference, strict=True)
    ]


def samples(config: TrainerConfig, advantages: list[float]) -> list[Sample]:
    return scored(config, trajectories(config, len(advantages)), advantages)


def learner(config: TrainerConfig) -> Learner:
    return Learner(config, 0, initial_weights(config))


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("minibatches", "updates"), [(2, 2), (10, 5)])
def test_every_sample_is_used_once_and_accounted_for(
    small: TrainerConfig, minibatches: int, updates: int
) -> None:
    config = dataclasses.replace(small, minibatches=minibatches)
    batch = samples(config, [1.0, -0.5, -1.0, 0.25, 0.5])
    report = learner(config).train(4, batch)
    uses = {use.trajectory: use for use in report.uses}
    assert sorted(uses) == sorted(s.trajectory.id for s in batch)
    assert len(report.uses) == 5
    for sample in batch:
        use = uses[sample.trajectory.id]
        assert (use.fate, use.lag, use.version) == ("trained", 0, 0)
        assert use.tokens == len(sample.trajectory.tokens)
    assert report.updates == updates


def test_nothing_to_train_on_changes_nothing(small: TrainerConfig) -> None:
    trained = learner(small)
    before = weights(trained)
    report = trained.train(0, [])
    assert (report.updates, report.uses) == (0, [])
    assert math.isnan(report.loss)
    assert same(before, weights(trained))


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
    done = []
    for t in trajectories(settings, 6):
        own = np.arange(len(t.tokens)) != 1
        done.append(dataclasses.replace(t, generated=own, log_probs=t.log_probs[own]))
    report = learner(settings).train(0, scored(settings, done, [1.0] * 6))
    used = sum(use.tokens for use in report.uses)
    assert used == sum(t.response_tokens for t in done) < sum(len(t.tokens) for t in done)
    for use in report.uses:  # on policy, so ratios are one
        assert use.mean_log_ratio == pytest.approx(0, abs=1e-5)
        assert use.clip_share == 0
        assert use.sum_w == pytest.approx(use.tokens, rel=1e-4)
        assert use.sum_w_squared == pytest.approx(use.tokens, rel=1e-4)


def test_a_learner_goes_on_from_a_checkpoint_bit_for_bit_with_its_optimizer(
    small: TrainerConfig, tmp_path: Path
) -> None:
    batches = [samples(small, [1.0, -1.0, 0.5, step - 1.0]) for step in range(4)]

    def finished(trained: Learner) -> tuple[dict[str, torch.Tensor], list[float]]:
        losses = [trained.train(step, batches[step]).loss for step in (2, 3)]
        return weights(trained), losses

    kept = dataclasses.replace(small, checkpoint=str(tmp_path / "run.pt"))
    straight, resumed, forgetful = learner(small), learner(small), learner(small)
    for step in range(2):
        straight.train(step, batches[step])
    Checkpoint(kept).save(2, 7, straight.state())
    expected, losses = finished(straight)
    there = Checkpoint(dataclasses.replace(kept, resume=True))
    assert there.state is not None
    forgetful.model.load_state_dict(there.state["model"])  # the weights alone are not enough
    resumed.restore(there.state, there.version)
    assert (there.step, resumed.version) == (2, 7)
    found, found_losses = finished(resumed)
    assert found_losses == losses
    assert same(found, expected)
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
