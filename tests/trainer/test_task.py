"""What every task owes: the same prompts for a seed, grades that grow with what is right, a text
for every token and a token for every text."""

from __future__ import annotations

import pytest

from rltrace.testing.inside.trainer import TASKS, TrainerConfig, TrainerError
from rltrace.trainer.task import ASK, END, FIRST_SYMBOL, Task, similarity, task_of

A, B, C, D, E, F = range(FIRST_SYMBOL, FIRST_SYMBOL + 6)


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    """Each task in its default settings."""
    return task_of(TrainerConfig(task=request.param))


def test_every_task_is_known_by_its_name(task: Task) -> None:
    assert task.name == task.config.task


def test_demonstrations_earn_one_and_fit(task: Task) -> None:
    lengths = []
    for prompt in task.prompts(60, "demonstrations"):
        response, owned = task.demonstration(prompt)
        assert task.grade(prompt, response) == 1.0
        assert response[-1] == END
        assert END not in response[:-1]
        assert owned[-1]
        assert len(owned) == len(response)
        assert all(0 <= token < task.vocabulary for token in (*prompt, *response))
        lengths.append(len(response))
    assert max(lengths) <= task.longest_response


def test_right_earns_more_than_nearly_right_and_that_more_than_wrong(task: Task) -> None:
    for prompt in task.prompts(20, "order"):
        right, _ = task.demonstration(prompt)
        other = FIRST_SYMBOL if right[-2] != FIRST_SYMBOL else FIRST_SYMBOL + 1
        nearly = [*right[:-2], other, END]
        assert task.grade(prompt, right) > task.grade(prompt, nearly) > task.grade(prompt, [END])
        assert task.grade(prompt, [END]) == task.grade(prompt, []) == 0.0


def test_any_tokens_at_all_have_a_grade_from_zero_to_one(task: Task) -> None:
    prompt, *others = task.prompts(12, "garbage")
    for other in others:
        for response in (other, [ASK] * 3, [task.vocabulary - 1], [task.vocabulary - 1, *other]):
            assert 0.0 <= task.grade(prompt, response) <= 1.0


def test_the_seed_decides_the_prompts(task: Task) -> None:
    prompts = task.prompts(100, "7/1")
    assert prompts == task.prompts(100, "7/1")
    assert prompts != task.prompts(100, "7/2")
    assert {prompt[-1] for prompt in prompts} == {ASK}
    assert max(len(prompt) for prompt in prompts) == task.longest_prompt
    assert len(set(prompts)) > 5


def test_a_response_that_the_longest_answer_does_not_fit_into_is_refused(task: Task) -> None:
    needed = task.longest_response
    task_of(TrainerConfig(task=task.name, max_response=needed))
    rule = f"max_response must be at least {needed}, or not every answer to {task.name} can end"
    with pytest.raises(TrainerError, match=f"^{rule}, not {needed - 1}$"):
        task_of(TrainerConfig(task=task.name, max_response=needed - 1))


def test_a_pass_mark_turns_the_grade_into_all_or_nothing() -> None:
    prompt, half = (B, C, A, ASK), [C, A, B, END]
    for mark, reward in ((0.0, 0.5), (0.5, 1.0), (0.51, 0.0), (1.0, 0.0)):
        task = task_of(TrainerConfig(pass_mark=mark))
        assert task.reward(prompt, half) == reward
        assert task.reward(prompt, [A, B, C, END]) == 1.0


def test_single_turn_tasks_have_no_tool() -> None:
    task = task_of(TrainerConfig())
    assert task.call_token is None
    assert task.tool((B, A, ASK), [A, B, END]) is None


# A pair of neighbouring symbols may also be one token: "ab" is [A, B] or [AB].
AB, BC = 8, 9


@pytest.fixture
def merged() -> Task:
    return task_of(TrainerConfig(merges=2))


def test_merged_pairs_come_after_the_symbols(merged: Task) -> None:
    assert merged.vocabulary == 10
    assert merged.text([AB, BC, A, END]) == "abbca."


def test_a_text_is_tokenized_with_the_longest_pieces(merged: Task) -> None:
    assert merged.tokenize("abcb=") == [AB, C, B, ASK]
    assert merged.tokenize("bcab.") == [BC, AB, END]


def test_sampled_tokens_may_differ_from_those_of_their_text(merged: Task) -> None:
    sampled = [A, B, C, END]
    assert merged.tokenize(merged.text(sampled)) == [AB, C, END]


def test_without_merges_a_text_has_one_tokenization(task: Task) -> None:
    for tokens in task.prompts(30, "text"):
        assert task.tokenize(task.text(tokens)) == list(tokens)


def test_how_a_text_is_tokenized_does_not_change_its_grade(merged: Task) -> None:
    prompt = merged.tokenize("bca=")
    assert prompt == [BC, A, ASK]
    for tokens in ([A, B, C, END], [AB, C, END], [A, BC, END]):
        assert merged.grade(prompt, tokens) == merged.grade([B, C, A, ASK], tokens) == 1.0
    assert merged.grade(prompt, [BC, A, END]) == merged.grade(prompt, [B, C, A, END]) == 0.5


def test_merged_answers_are_the_tokenizers() -> None:
    for prompt in task_of(TrainerConfig(task="copy", merges=5)).prompts(20, "0"):
        assert task_of(TrainerConfig(task="copy", merges=5)).answer(prompt) == [*prompt[:-1], END]


def test_similarity_is_half_symbols_and_half_places() -> None:
    assert similarity("abc", "abc") == 1.0
    assert similarity("cab", "abc") == 0.5
    assert similarity("ddd", "abc") == similarity("", "abc") == 0.0
