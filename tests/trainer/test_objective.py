"""The objectives against calculation by hand: values, gradients, and where those are cut."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rltrace.testing.inside.trainer import OBJECTIVES
from rltrace.trainer.objective import objective

UP, DOWN = torch.tensor([1.0]), torch.tensor([-1.0])


def evaluate(
    name: str, probabilities: tuple[list[float], ...], advantage: Tensor
) -> tuple[list[float], list[bool], list[float]]:
    """Value, cut and gradient by log theta, for probabilities under theta, behaviour, proximal."""
    theta, behaviour, proximal = (torch.tensor([row]).log() for row in probabilities)
    theta.requires_grad_()
    value, cut = objective(name, theta, behaviour, proximal, advantage, clip=0.2, truncate=2.0)
    value.sum().backward()
    assert theta.grad is not None
    return value[0].tolist(), cut[0].tolist(), theta.grad[0].tolist()


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("advantage", [1.5, -0.5])
def test_on_policy_the_gradient_is_that_of_reinforce(name: str, advantage: float) -> None:
    same = [0.3, 0.05, 0.9]
    _, cut, gradient = evaluate(name, (same, same, same), torch.tensor([advantage]))
    assert gradient == pytest.approx([advantage] * 3)
    assert cut == [False] * 3


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_row_has_its_own_advantage(name: str) -> None:
    log_probs = torch.full((2, 3), math.log(0.5), requires_grad=True)
    same = log_probs.detach()
    value, _ = objective(name, log_probs, same, same, torch.tensor([2.0, -1.0]), 0.2, 2.0)
    value.sum().backward()
    assert log_probs.grad is not None
    torch.testing.assert_close(log_probs.grad, torch.tensor([[2.0] * 3, [-1.0] * 3]))


def test_the_clip_cuts_off_gains_but_not_losses() -> None:
    theta, old = [0.75, 0.25, 0.55], [0.5, 0.5, 0.5]  # ratios of 1.5, 0.5 and 1.1
    value, cut, gradient = evaluate("grpo", (theta, old, old), UP)
    assert value == pytest.approx([1.2, 0.5, 1.1])
    assert cut == [True, False, False]
    assert gradient == pytest.approx([0, 0.5, 1.1])
    value, cut, gradient = evaluate("grpo", (theta, old, old), DOWN)
    assert value == pytest.approx([-1.5, -0.8, -1.1])
    assert cut == [False, True, False]
    assert gradient == pytest.approx([-1.5, 0, -1.1])


def test_grpo_compares_with_the_proximal_policy() -> None:
    one = evaluate("grpo", ([0.55], [0.1], [0.5]), UP)
    assert one == evaluate("grpo", ([0.55], [0.9], [0.5]), UP)
    assert one[0] == pytest.approx([1.1])


def test_decoupled_clips_by_the_proximal_and_weighs_by_the_behaviour_policy() -> None:
    theta, proximal = [0.55, 0.75, 0.55], [0.5, 0.5, 0.5]
    behaviour = [0.4, 0.4, 0.1]  # weights of 1.25, 1.25, and 5 that is truncated at 2
    value, cut, gradient = evaluate("decoupled", (theta, behaviour, proximal), UP)
    assert value == pytest.approx([1.25 * 1.1, 1.25 * 1.2, 2 * 1.1])
    assert cut == [False, True, True]
    assert gradient == pytest.approx([1.25 * 1.1, 0, 2 * 1.1])


def test_decoupled_without_a_proximal_policy_of_its_own_is_grpo() -> None:
    theta, old = [0.75, 0.25, 0.55], [0.5, 0.5, 0.5]
    for advantage in (UP, DOWN):
        assert evaluate("decoupled", (theta, old, old), advantage) == evaluate(
            "grpo", (theta, old, old), advantage
        )


def test_truncated_weights_scale_the_gradient_and_let_none_through() -> None:
    theta, behaviour = [0.6, 0.2, 0.9], [0.5, 0.4, 0.1]  # weights of 1.2, 0.5, and 9, truncated
    for advantage in (UP, DOWN):
        sign = advantage.item()
        value, cut, gradient = evaluate("tis", (theta, behaviour, behaviour), advantage)
        assert gradient == pytest.approx([sign * w for w in (1.2, 0.5, 2.0)])
        assert value == pytest.approx(
            [g * math.log(p) for g, p in zip(gradient, theta, strict=True)]
        )
        assert cut == [False, False, True]


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no objective 'dpo'"):
        evaluate("dpo", ([0.5], [0.5], [0.5]), UP)
