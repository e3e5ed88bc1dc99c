"""A fresh policy: decoding with a KV cache is the same function as reading the whole sequence at
once, and a warm start decides how often it succeeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
import torch

from rltrace.testing.inside.trainer import END, Task, TrainerConfig, task_of
from rltrace.trainer.learning.model import ModelShape, Transformer, next_token_log_probs
from rltrace.trainer.learning.policy import warm_start

SHAPE = ModelShape(vocabulary=9, context=14, width=32, layers=3, heads=4)
COPY = TrainerConfig(task="copy", symbols=3, shortest=2, longest=2, max_response=6)


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


def test_the_first_policy_is_nearly_uniform(model: Transformer) -> None:
    probabilities = model(torch.randint(0, 9, (16, 14))).softmax(-1)
    assert probabilities.min() > 0.5 / 9
    assert probabilities.max() < 2 / 9


def test_log_probs_are_of_the_token_that_came_next() -> None:
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1.0, 1.0, 1.0]]]))
    scored = next_token_log_probs(logits, torch.tensor([[2, 1, 2]]))
    torch.testing.assert_close(scored.exp(), torch.tensor([[0.25, 0.7]]))


def started(task: Task, updates: int, seed: int = 0) -> Transformer:
    shape = ModelShape(task.vocabulary, task.longest_prompt + 16, width=32, layers=2, heads=2)
    model = Transformer(shape, seed=7)
    warm_start(model, task, updates, seed)
    return model


@torch.no_grad()
def likeliest(model: Transformer, task: Task, prompt: tuple[int, ...]) -> list[int]:
    """The greedy response of a single-turn task."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + task.config.max_response and tokens[-1] != END:
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_success_rises_with_the_number_of_updates() -> None:
    task = task_of(dataclasses.replace(COPY, pass_mark=1.0))
    prompts = sorted(set(task.prompts(100, "test")))
    success = [
        sum(task.reward(p, likeliest(model, task, p)) for p in prompts) / len(prompts)
        for model in (started(task, 0), started(task, 15), started(task, 120))
    ]
    assert success[0] < 0.2
    assert success[0] < success[1] < success[2]
    assert success[2] > 0.9


@pytest.mark.parametrize(
    "policy", [partial(Transformer, SHAPE), partial(started, task_of(COPY), 3)]
)
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(
    policy: Callable[[int], Transformer],
) -> None:
    one, same, other = (policy(seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_what_the_tool_says_is_not_learned() -> None:
    """Its last token is the same every time, so it would be learned at once if it counted."""
    task = task_of(TrainerConfig(task="lookup", symbols=3, shortest=2, longest=2))
    model = started(task, 150)
    for prompt in sorted(set(task.prompts(50, "test"))):
        response, owned = task.demonstration(prompt)
        logits = model(torch.tensor([[*prompt, *response]]))[0, len(prompt) - 1 :]
        chances = logits.detach().softmax(-1)
        said = [chances[place, token].item() for place, token in enumerate(response)]
        told = [chance for chance, own in zip(said, owned, strict=True) if not own]
        assert told[-1] < 0.5
        assert min(chance for chance, own in zip(said, owned, strict=True) if own) > 0.5
