"""A warm start decides how often a fresh policy succeeds."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rltrace.testing.inside.trainer import (
    END,
    ModelShape,
    Task,
    TrainerConfig,
    Transformer,
    task_of,
    warm_start,
)

COPY = TrainerConfig(task="copy", symbols=3, shortest=2, longest=2, max_response=6)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """As in the trainer: such small products are slower on several, and far slower on busy ones."""
    torch.set_num_threads(1)


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


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    task = task_of(COPY)
    one, same, other = (started(task, 3, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_without_updates_the_weights_stay() -> None:
    task = task_of(COPY)
    fresh = Transformer(started(task, 0).shape, seed=7).state_dict()
    assert all(torch.equal(fresh[n], t) for n, t in started(task, 0).state_dict().items())


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
