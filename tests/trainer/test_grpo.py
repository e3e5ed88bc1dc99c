"""GRPO's maths and the objectives against calculation by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rltrace.testing.inside.trainer import OBJECTIVES, ModelShape, Transformer
from rltrace.trainer.learning import grpo


def response(
    prompt: tuple[int, ...], tokens: list[int], tool: tuple[int, ...] = ()
) -> grpo.Response:
    """A response whose tokens at the places in `tool` are a tool's."""
    generated = np.array([place not in tool for place in range(len(tokens))], dtype=bool)
    return grpo.Response(prompt, np.array(tokens, dtype=np.int64), generated)


def values(*numbers: float) -> NDArray[np.float32]:
    return np.array(numbers, dtype=np.float32)


def test_advantages_compare_a_sample_with_its_group_in_any_order() -> None:
    """A failed sample has no part in its group; one that is alone has no signal, nor has a group
    of equal rewards."""
    nan = math.nan
    samples = [("a", 1), ("b", 0.5), ("a", 0), ("c", nan), ("b", 0.2), ("d", 0.7), ("b", 0.4)]
    samples += [("a", nan), ("c", 0.3), ("d", 0.7), ("d", 0.7), ("d", nan)]
    groups, rewards = zip(*samples, strict=True)
    advantages = grpo.group_advantages(rewards, groups)
    spread = math.sqrt(0.5)  # of 1 and 0, with n - 1
    assert advantages[[0, 2]] == pytest.approx([0.5 / (spread + 1e-4), -0.5 / (spread + 1e-4)])
    mean = 1.1 / 3
    spread = math.sqrt(((0.5 - mean) ** 2 + (0.2 - mean) ** 2 + (0.4 - mean) ** 2) / 2)
    assert advantages[1] == pytest.approx((0.5 - mean) / (spread + 1e-4))
    assert advantages[[1, 4, 6]].sum() == pytest.approx(0)
    assert advantages[[3, 5, *range(7, 12)]].tolist() == [0] * 7


def test_k3_is_zero_where_policies_agree_and_positive_elsewhere() -> None:
    found = grpo.k3(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0]))
    assert found.tolist() == [pytest.approx(math.exp(-0.5) + 0.5 - 1), 0]


@pytest.mark.filterwarnings("error")
def test_ratio_statistics_cover_a_trajectorys_own_tokens_only() -> None:
    log_ratio = torch.tensor([[0.3, -0.1, 9.0], [0.0, 0.0, 0.0], [0.3, 0.3, 0.3]])
    clipped = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    mask = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    one, two, none = grpo.ratio_statistics(log_ratio, clipped, mask)
    assert one["mean_log_ratio"] == pytest.approx(0.1)
    assert one["clip_share"] == pytest.approx(0.5)
    assert one["sum_w"] == pytest.approx(math.exp(0.3) + math.exp(-0.1))
    assert one["sum_w_squared"] == pytest.approx(math.exp(0.6) + math.exp(-0.2))
    assert list(two.values()) == [0.0, 0.0, 3.0, 3.0]
    assert list(none.values()) == [0.0, 0.0, 0.0, 0.0]


def test_packing_puts_values_beside_generated_tokens_and_a_tools_are_context_only() -> None:
    rows = [
        response((5, 1), [7, 3, 4, 8], tool=(1, 2)),
        response((4, 4, 1), [6, 9, 0]),
        response((5, 1), [7], tool=(0,)),
        response((5, 1), []),
    ]
    packed = grpo.Packed.of(rows)
    assert packed.tokens.tolist() == [
        [5, 1, 7, 3, 4, 8], [4, 4, 1, 6, 9, 0], [5, 1, 7, 0, 0, 0], [5, 1, 0, 0, 0, 0],
    ]  # fmt: skip
    assert packed.tokens[:, 1:][packed.mask].tolist() == [7, 8, 6, 9, 0]
    given = [values(-1, -2), values(-1, -2, -3), values(), values()]
    spread = packed.spread(given)
    assert spread.tolist() == [[0, -1, 0, 0, -2], [0, 0, -1, -2, -3], [0] * 5, [0] * 5]
    assert [one.tolist() for one in packed.collect(spread)] == [one.tolist() for one in given]


def test_log_probs_are_those_of_generated_tokens_given_all_before() -> None:
    model = Transformer(ModelShape(vocabulary=9, context=8, width=16, layers=1, heads=2), seed=1)
    told = response((5, 1), [7, 3, 8], tool=(1,))
    ((first, last),) = grpo.response_log_probs(model, [told])
    with torch.no_grad():
        scores = model(torch.tensor([[5, 1, 7, 3]])).log_softmax(-1)[0]
    assert first == pytest.approx(scores[1, 7].item(), abs=1e-5)
    assert last == pytest.approx(scores[3, 8].item(), abs=1e-5)


# --- objectives: values, gradients, and where those are cut ---------------------------------------


def evaluate(
    name: str, probabilities: tuple[list[float], ...], *advantages: float
) -> tuple[list[list[float]], list[list[bool]], list[list[float]]]:
    """Value, cut and gradient by log theta, for probabilities under theta, behaviour, proximal: a
    row for each advantage."""
    rows = len(advantages)
    theta, behaviour, proximal = (torch.tensor([row] * rows).log() for row in probabilities)
    theta.requires_grad_()
    advantage = torch.tensor(advantages)
    value, cut = grpo.objective(name, theta, behaviour, proximal, advantage, clip=0.2, truncate=2.0)
    value.sum().backward()
    assert theta.grad is not None
    return value.tolist(), cut.tolist(), theta.grad.tolist()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_on_policy_the_gradient_is_that_of_reinforce_by_the_advantage_of_each_row(
    name: str,
) -> None:
    same = [0.3, 0.05, 0.9]
    _, cut, gradient = evaluate(name, (same, same, same), 1.5, -0.5)
    assert gradient == [pytest.approx([1.5] * 3), pytest.approx([-0.5] * 3)]
    assert cut == [[False] * 3] * 2


@pytest.mark.parametrize("name", ["grpo", "decoupled"])
def test_the_clip_cuts_off_gains_but_not_losses(name: str) -> None:
    """Decoupled without a proximal policy of its own is GRPO."""
    theta, old = [0.75, 0.25, 0.55], [0.5, 0.5, 0.5]  # ratios of 1.5, 0.5 and 1.1
    value, cut, gradient = evaluate(name, (theta, old, old), 1, -1)
    assert value == [pytest.approx([1.2, 0.5, 1.1]), pytest.approx([-1.5, -0.8, -1.1])]
    assert cut == [[True, False, False], [False, True, False]]
    assert gradient == [pytest.approx([0, 0.5, 1.1]), pytest.approx([-1.5, 0, -1.1])]


@pytest.mark.parametrize("behaviour", [0.1, 0.9])
def test_grpo_compares_with_the_proximal_policy(behaviour: float) -> None:
    value, cut, gradient = evaluate("grpo", ([0.55], [behaviour], [0.5]), 1)
    assert (value, cut, gradient) == ([[pytest.approx(1.1)]], [[False]], [[pytest.approx(1.1)]])


def test_decoupled_clips_by_the_proximal_and_weighs_by_the_behaviour_policy() -> None:
    theta, proximal = [0.55, 0.75, 0.55], [0.5, 0.5, 0.5]
    behaviour = [0.4, 0.4, 0.1]  # weights of 1.25, 1.25, and 5 that is truncated at 2
    (value,), (cut,), (gradient,) = evaluate("decoupled", (theta, behaviour, proximal), 1)
    assert value == pytest.approx([1.25 * 1.1, 1.25 * 1.2, 2 * 1.1])
    assert cut == [False, True, True]
    assert gradient == pytest.approx([1.25 * 1.1, 0, 2 * 1.1])


def test_truncated_weights_scale_the_gradient_and_let_none_through() -> None:
    theta, behaviour = [0.6, 0.2, 0.9], [0.5, 0.4, 0.1]  # weights of 1.2, 0.5, and 9, truncated
    values, cuts, gradients = evaluate("tis", (theta, behaviour, behaviour), 1, -1)
    assert cuts == [[False, False, True]] * 2
    for sign, value, gradient in zip((1, -1), values, gradients, strict=True):
        weights = [sign * w for w in (1.2, 0.5, 2.0)]
        assert gradient == pytest.approx(weights)
        assert value == pytest.approx(
            [w * math.log(p) for w, p in zip(weights, theta, strict=True)]
        )


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ValueError, match="dpo"):
        evaluate("dpo", ([0.5], [0.5], [0.5]), 1)
