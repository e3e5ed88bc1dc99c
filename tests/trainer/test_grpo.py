"""GRPO's maths against calculation by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rltrace.testing.inside.trainer import ModelShape, Transformer
from rltrace.trainer import grpo


@dataclass(frozen=True)
class Response:
    prompt: tuple[int, ...]
    tokens: NDArray[np.int64]
    generated: NDArray[np.bool_]


def response(prompt: tuple[int, ...], tokens: list[int], tool: tuple[int, ...] = ()) -> Response:
    """A response whose tokens at the places in `tool` are a tool's."""
    generated = np.array([place not in tool for place in range(len(tokens))], dtype=bool)
    return Response(prompt, np.array(tokens, dtype=np.int64), generated)


def values(*numbers: float) -> NDArray[np.float32]:
    return np.array(numbers, dtype=np.float32)


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


def test_a_failed_sample_has_no_part_in_its_group() -> None:
    nan = math.nan
    rewards, groups = [1.0, nan, 0.0, 0.3, nan, nan], ["a", "a", "a", "b", "b", "c"]
    advantages = grpo.group_advantages(rewards, groups)
    assert advantages[[0, 2]].tolist() == grpo.group_advantages([1.0, 0.0], ["a", "a"]).tolist()
    assert advantages[[1, 3, 4, 5]].tolist() == [0, 0, 0, 0]  # one that is alone has no signal


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


@pytest.mark.filterwarnings("error")
def test_a_row_without_tokens_has_statistics_of_zero() -> None:
    (nothing,) = grpo.ratio_statistics(
        torch.tensor([[0.3]]), torch.tensor([[True]]), torch.tensor([[False]])
    )
    assert nothing == grpo.RatioStatistics(0.0, 0.0, 0.0, 0.0)


def test_packing_puts_values_beside_the_tokens_they_belong_to() -> None:
    packed = grpo.Packed.of([response((5, 1), [7, 8]), response((4, 4, 1), [6, 9, 0])])
    assert packed.tokens.tolist() == [[5, 1, 7, 8, 0, 0], [4, 4, 1, 6, 9, 0]]
    assert packed.tokens[:, 1:][packed.mask].tolist() == [7, 8, 6, 9, 0]
    given = [values(-1, -2), values(-1, -2, -3)]
    spread = packed.spread(given)
    assert spread.tolist() == [[0, -1, -2, 0, 0], [0, 0, -1, -2, -3]]
    for collected, one in zip(packed.collect(spread), given, strict=True):
        assert collected.tolist() == one.tolist()


def test_what_a_tool_said_is_context_only() -> None:
    packed = grpo.Packed.of([response((5, 1), [7, 3, 4, 8], tool=(1, 2)), response((5, 1), [0])])
    assert packed.tokens[0].tolist() == [5, 1, 7, 3, 4, 8]
    assert packed.mask.tolist() == [
        [False, True, False, False, True],
        [False, True, False, False, False],
    ]
    spread = packed.spread([values(-1, -2), values(-3)])
    assert spread.tolist() == [[0, -1, 0, 0, -2], [0, -3, 0, 0, 0]]
    assert [one.tolist() for one in packed.collect(spread)] == [[-1, -2], [-3]]


def test_a_row_without_generated_tokens_collects_nothing() -> None:
    packed = grpo.Packed.of([response((5, 1), [7], tool=(0,)), response((5, 1), [])])
    assert [one.tolist() for one in packed.collect(packed.spread([values(), values()]))] == [[], []]


def test_log_probs_are_those_of_generated_tokens_given_all_before() -> None:
    model = Transformer(ModelShape(vocabulary=9, context=8, width=16, layers=1, heads=2), seed=1)
    told = response((5, 1), [7, 3, 8], tool=(1,))
    ((first, last),) = grpo.response_log_probs(model, [told])
    with torch.no_grad():
        scores = model(torch.tensor([[5, 1, 7, 3]])).log_softmax(-1)[0]
    assert first == pytest.approx(scores[1, 7].item(), abs=1e-5)
    assert last == pytest.approx(scores[3, 8].item(), abs=1e-5)
