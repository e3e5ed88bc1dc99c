"""The verifiable task: prompts, answers, and a reward that grows with every right symbol."""

from __future__ import annotations

import pytest

from rltrace.trainer.task import ASK, END, RULES, Task

A, B, C, D = range(2, 6)


@pytest.fixture
def task() -> Task:
    return Task("sort", symbols=4, shortest=2, longest=5)


@pytest.mark.parametrize(
    ("rule", "answer"), [("sort", [A, B, C]), ("reverse", [A, C, B]), ("copy", [B, C, A])]
)
def test_rules(rule: str, answer: list[int]) -> None:
    assert Task(rule, 4, 2, 5).answer((B, C, A, ASK)) == answer
    assert rule in RULES


def test_the_right_answer_and_only_that_earns_one(task: Task) -> None:
    prompt = (B, C, A, ASK)
    assert task.reward(prompt, [A, B, C, END]) == 1.0
    for wrong in ([A, B, END], [A, B, C, C, END], [A, C, B, END], [A, B, D, END]):
        assert 0 < task.reward(prompt, wrong) < 1


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ([END], 0.0),
        ([D, D, END], 0.0),
        ([C, A, B, END], 0.5),  # all symbols, no place
        ([A, C, B, END], 0.5 + 0.5 / 3),  # one place of three
        ([A, END], 0.5 * 2 / 4 + 0.5 / 3),  # one symbol of three, in its place
        ([A, B, C, A, A, A], 0.5 * 6 / 9 + 0.5 * 3 / 6),  # does not end
    ],
)
def test_partial_rewards(task: Task, response: list[int], reward: float) -> None:
    assert task.reward((B, C, A, ASK), response) == pytest.approx(reward)


def test_prompts_have_the_stated_lengths_and_symbols_and_depend_on_the_seed(task: Task) -> None:
    prompts = task.prompts(300, "7/1")
    assert {len(p) for p in prompts} == {3, 4, 5, 6}
    assert {p[-1] for p in prompts} == {ASK}
    assert {token for p in prompts for token in p[:-1]} == {A, B, C, D}
    assert prompts == task.prompts(300, "7/1")
    assert prompts != task.prompts(300, "7/2")


def test_text_is_readable(task: Task) -> None:
    assert task.text((B, C, A, ASK)) == "bca="
    assert task.text([A, B, C, END]) == "abc."
