"""The learner: what it trains, what it leaves out, and what it reports about both."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.engine import Engine
from rltrace.trainer.grpo import response_log_probs
from rltrace.trainer.roles import Learner, policy_of, task_of
from rltrace.trainer.trajectory import Request, Sample


def samples(config: TrainerConfig, advantages: list[float]) -> list[Sample]:
    policy = policy_of(config)
    engine = Engine(policy, config.max_running, config.max_response)
    prompts = task_of(config).prompts(len(advantages), "0")
    done = engine.generate([Request(f"r{i}", "g", 0, p) for i, p in enumerate(prompts)], seed=0)
    reference = response_log_probs(policy, done)
    return [
        Sample(trajectory, advantage, log_probs)
        for trajectory, advantage, log_probs in zip(done, advantages, reference, strict=True)
    ]


def test_samples_without_advantage_are_left_out_and_accounted_for(small: TrainerConfig) -> None:
    batch = samples(small, [1.0, 0.0, -1.0, 0.0, 0.5])
    report = Learner(small).train(4, batch)
    fates = {use.trajectory: use for use in report.uses}
    assert len(fates) == len(report.uses) == 5
    for sample in batch:
        use = fates[sample.trajectory.id]
        assert use.lag == 0
        if sample.advantage == 0:
            assert use.fate == "zero-advantage"
            assert math.isnan(use.sum_w)
        else:
            assert use.fate == "trained"
        assert use.tokens == len(sample.trajectory.tokens)
    assert report.tokens == sum(use.tokens for use in report.uses if use.fate == "trained")
    assert report.updates == small.minibatches


def test_on_policy_ratios_of_the_first_minibatch_are_one(small: TrainerConfig) -> None:
    one_update = dataclasses.replace(small, minibatches=1)
    for use in Learner(one_update).train(0, samples(small, [1.0, -1.0, 2.0])).uses:
        assert use.mean_log_ratio == pytest.approx(0, abs=1e-5)
        assert use.clip_share == 0
        assert use.sum_w == pytest.approx(use.tokens, rel=1e-4)
        assert use.sum_w_squared == pytest.approx(use.tokens, rel=1e-4)


def test_training_makes_rewarded_samples_likelier_and_others_less_so(small: TrainerConfig) -> None:
    batch = samples(small, [1.0, -1.0] * 4)
    learner = Learner(small)
    learner.train(0, batch)
    after = response_log_probs(learner.model, [s.trajectory for s in batch])
    gained = [
        np.sign(s.advantage) * (new - s.trajectory.log_probs).sum()
        for s, new in zip(batch, after, strict=True)
    ]
    assert np.mean(gained) > 0.1


def test_without_any_advantage_the_weights_stay(small: TrainerConfig) -> None:
    learner = Learner(small)
    before = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    report = learner.train(0, samples(small, [0.0, 0.0]))
    assert report.updates == 0
    assert math.isnan(report.loss)
    assert all(torch.equal(before[n], t) for n, t in learner.model.state_dict().items())


def test_the_kl_term_alone_pulls_the_policy_back_to_the_reference(small: TrainerConfig) -> None:
    settings = dataclasses.replace(small, kl_coefficient=10.0, minibatches=1, learning_rate=1e-3)
    batch = samples(small, [1e-9] * 8)  # a signal, so that it is trained, but next to none
    learner = Learner(settings)
    with torch.no_grad():
        learner.model.head.weight += 0.1 * torch.randn(
            learner.model.head.weight.shape, generator=torch.Generator().manual_seed(0)
        )
    divergences = [learner.train(step, batch).kl for step in range(10)]
    assert divergences[0] > 0.001
    assert divergences[-1] < divergences[0] / 2


def test_lag_counts_published_versions_since_the_first_token(small: TrainerConfig) -> None:
    learner = Learner(small)
    learner.version = 5
    batch = samples(small, [1.0, 0.0])
    old = [
        dataclasses.replace(s, trajectory=dataclasses.replace(s.trajectory, first_version=2))
        for s in batch
    ]
    report = learner.train(0, old)
    assert report.version == 5
    assert [use.lag for use in report.uses] == [3, 3]
