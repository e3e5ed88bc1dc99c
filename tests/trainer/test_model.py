"""Decoding with a KV cache is the same function as reading the whole sequence at once."""

from __future__ import annotations

import pytest
import torch

from rltrace.trainer.model import ModelShape, Transformer, next_token_log_probs

SHAPE = ModelShape(vocabulary=9, context=14, width=32, layers=3, heads=4)


@pytest.fixture
def model() -> Transformer:
    return Transformer(SHAPE, seed=3)


def test_prefill_and_decode_give_the_logits_of_the_full_forward_pass(model: Transformer) -> None:
    lengths = torch.tensor([3, 7, 1, 5])
    tokens = torch.randint(0, 9, (4, 14), generator=torch.Generator().manual_seed(0))
    full = model(tokens)
    rows = torch.arange(4)

    logits, cache = model.prefill(tokens[:, :7], lengths)
    torch.testing.assert_close(logits, full[rows, lengths - 1], atol=1e-5, rtol=1e-5)
    for offset in range(7):
        position = lengths + offset
        logits = model.decode(tokens[rows, position], position, cache)
        torch.testing.assert_close(logits, full[rows, position], atol=1e-5, rtol=1e-5)


def test_rows_that_leave_and_join_a_cache_do_not_disturb_the_others(model: Transformer) -> None:
    tokens = torch.randint(0, 9, (3, 8), generator=torch.Generator().manual_seed(1))
    full = model(tokens)
    first = torch.tensor([4, 4])

    _, cache = model.prefill(tokens[:2, :4], first)
    cache.keep(torch.tensor([1]))
    _, newcomer = model.prefill(tokens[2:, :6], torch.tensor([6]))
    cache.join(newcomer)

    logits = model.decode(torch.stack([tokens[1, 4], tokens[2, 6]]), torch.tensor([4, 6]), cache)
    torch.testing.assert_close(logits[0], full[1, 4], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[1], full[2, 6], atol=1e-5, rtol=1e-5)


def test_what_follows_a_token_does_not_change_its_logits(model: Transformer) -> None:
    tokens = torch.randint(0, 9, (2, 10), generator=torch.Generator().manual_seed(2))
    other = tokens.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 9
    torch.testing.assert_close(model(tokens)[:, :6], model(other)[:, :6])
    assert not torch.allclose(model(tokens)[:, 6:], model(other)[:, 6:])


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    one, same, other = (Transformer(SHAPE, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_the_first_policy_is_nearly_uniform(model: Transformer) -> None:
    probabilities = model(torch.randint(0, 9, (16, 14))).softmax(-1)
    assert probabilities.min() > 0.5 / 9
    assert probabilities.max() < 2 / 9


def test_log_probs_are_of_the_token_that_came_next() -> None:
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1.0, 1.0, 1.0]]]))
    scored = next_token_log_probs(logits, torch.tensor([[2, 1, 2]]))
    torch.testing.assert_close(scored.exp(), torch.tensor([[0.25, 0.7]]))
