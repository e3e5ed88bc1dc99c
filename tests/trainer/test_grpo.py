"""GRPO's maths against calculation by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rltrace.trainer import grpo
from rltrace.trainer.trajectory import Trajectory


def trajectory(prompt: tuple[int, ...], tokens: list[int]) -> Trajectory:
    log_probs = -np.arange(1, len(tokens) + 1, dtype=np.float32)
    return Trajectory("t", "g", 0, prompt, np.array(tokens), log_probs, 0, 0, "stop")


def test_advantages_compare_a_sample_with_its_group() -> None:
    advantages = grpo.group_advantages([1.0, 0.0, 0.5, 0.2, 0.4], ["a", "a", "b", "b", "b"])
    spread = math.sqrt(0.5)  # of 1 and 0, with n - 1
    assert advantages[:2] == pytest.approx([0.5 / (spread + 1e-4), -0.5 / (spread + 1e-4)])
    mean = 1.1 / 3
    spread = math.sqrt(((0.5 - mean) ** 2 + (0.2 - mean) ** 2 + (0.4 - mean) ** 2) / 2)
    assert advantages[2] == pytest.approx((0.5 - mean) / (spread + 1e-4))
    assert advantages[2:].sum() == pytest.approx(0)


def test_members_of_a_group_may_come_in_any_order() -> None:
    mixed = grpo.group_advantages([1, 3, 0, 5], ["a", "b", "a", "b"])
    assert mixed == pytest.approx([0.707, -0.707, -0.707, 0.707], abs=2e-4)


def test_a_group_of_equal_rewards_gives_no_signal_at_all() -> None:
    advantages = grpo.group_advantages([0.7, 0.7, 0.7, 0.1, 0.2], ["a", "a", "a", "b", "b"])
    assert advantages[:3].tolist() == [0, 0, 0]
    assert (advantages[3:] != 0).all()


def test_k3_is_zero_where_policies_agree_and_positive_elsewhere() -> None:
    same = torch.tensor([-1.0, -2.0])
    assert (grpo.k3(same, same) == 0).all()
    log_probs, reference = torch.tensor([-1.0]), torch.tensor([-1.5])
    assert grpo.k3(log_probs, reference).item() == pytest.approx(math.exp(-0.5) + 0.5 - 1)


def test_k3_estimates_the_kl_divergence() -> None:
    policy = torch.tensor([0.7, 0.2, 0.1])
    reference = torch.tensor([0.4, 0.4, 0.2])
    exact = (policy * (policy / reference).log()).sum()
    estimate = (policy * grpo.k3(policy.log(), reference.log())).sum()
    torch.testing.assert_close(estimate, exact)


def test_the_clip_cuts_off_gains_but_not_losses() -> None:
    log_ratio = torch.tensor([[1.5, 1.5, 0.5, 0.5, 1.1]]).log().repeat(2, 1)
    objective, clipped = grpo.clipped_objective(log_ratio, torch.tensor([1.0, -1.0]), clip=0.2)
    torch.testing.assert_close(
        objective, torch.tensor([[1.2, 1.2, 0.5, 0.5, 1.1], [-1.5, -1.5, -0.8, -0.8, -1.1]])
    )
    assert clipped.tolist() == [
        [True, True, False, False, False],
        [False, False, True, True, False],
    ]


def test_no_gradient_flows_where_the_clip_binds() -> None:
    log_ratio = torch.tensor([[0.5, 0.1]], requires_grad=True)
    objective, _ = grpo.clipped_objective(log_ratio, torch.tensor([1.0]), clip=0.2)
    objective.sum().backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad[0, 0] == 0
    assert log_ratio.grad[0, 1] == pytest.approx(math.exp(0.1))


def test_ratio_statistics_cover_a_trajectorys_own_tokens_only() -> None:
    log_ratio = torch.tensor([[0.3, -0.1, 9.0], [0.0, 0.0, 0.0]])
    clipped = torch.tensor([[True, False, True], [False, False, False]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    one, two = grpo.ratio_statistics(log_ratio, clipped, mask)
    assert one.mean_log_ratio == pytest.approx(0.1)
    assert one.clip_share == pytest.approx(0.5)
    assert one.sum_w == pytest.approx(math.exp(0.3) + math.exp(-0.1))
    assert one.sum_w_squared == pytest.approx(math.exp(0.6) + math.exp(-0.2))
    assert two == grpo.RatioStatistics(0.0, 0.0, 3.0, 3.0)


def test_packing_puts_values_beside_the_tokens_they_belong_to() -> None:
    short, long = trajectory((5, 1), [7, 8]), trajectory((4, 4, 1), [6, 9, 0])
    packed = grpo.Packed.of([short, long])
    assert packed.tokens.tolist() == [[5, 1, 7, 8, 0, 0], [4, 4, 1, 6, 9, 0]]
    assert packed.tokens[:, 1:][packed.mask].tolist() == [7, 8, 6, 9, 0]
    spread = packed.spread([short.log_probs, long.log_probs])
    assert spread.tolist() == [[0, -1, -2, 0, 0], [0, 0, -1, -2, -3]]
    for collected, given in zip(packed.collect(spread), (short, long), strict=True):
        assert collected.tolist() == given.log_probs.tolist()
