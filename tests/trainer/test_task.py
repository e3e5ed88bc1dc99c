"""Tasks: the same prompts for a seed, grades that grow with what is right, a text for every token
and a token for every text; what each kind asks, and how wrong answers are graded."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rltrace.testing.inside.trainer import TASKS, TrainerConfig, TrainerError
from rltrace.trainer import task as tasks
from rltrace.trainer.task import ASK, END, Repeat, Task, lognormal_ladder, task_of

FIRST_SYMBOL = max(END, ASK) + 1
A, B, C, D = range(FIRST_SYMBOL, FIRST_SYMBOL + 4)


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    """Each task in its default settings."""
    return task_of(TrainerConfig(task=request.param))


def test_demonstrations_earn_one_and_fit(task: Task) -> None:
    assert task.name == task.config.task
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
    with pytest.raises(TrainerError, match=f"^max_response must be at least {needed},"):
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


def test_without_merges_a_text_has_one_tokenization(task: Task) -> None:
    for tokens in task.prompts(30, "text"):
        assert task.tokenize(task.text(tokens)) == list(tokens)


def test_with_merges_it_has_several_and_the_tokenizers_is_that_of_the_longest_pieces() -> None:
    task = task_of(TrainerConfig(merges=2))
    assert task.vocabulary == 10
    assert task.text([AB, BC, A, END]) == "abbca."
    assert task.tokenize("abcb=") == [AB, C, B, ASK]
    assert task.tokenize("bcab.") == [BC, AB, END]
    prompt = task.tokenize("bca=")
    assert prompt == [BC, A, ASK]
    for tokens in ([A, B, C, END], [AB, C, END], [A, BC, END]):  # its grade is that of its text
        assert task.grade(prompt, tokens) == task.grade([B, C, A, ASK], tokens) == 1.0
    assert task.grade(prompt, [BC, A, END]) == task.grade(prompt, [B, C, A, END]) == 0.5


def test_merged_answers_are_the_tokenizers() -> None:
    for prompt in task_of(TrainerConfig(task="copy", merges=5)).prompts(20, "0"):
        assert task_of(TrainerConfig(task="copy", merges=5)).answer(prompt) == [*prompt[:-1], END]


@pytest.mark.parametrize(
    ("kind", "prompt", "response", "grade"),
    [
        ("sort", "bca=", "abc.", 1.0),
        ("reverse", "bca=", "acb.", 1.0),
        ("copy", "bca=", "bca.", 1.0),
        ("sort", "bca=", ".", 0.0),
        ("sort", "bca=", "dd.", 0.0),
        ("sort", "bca=", "cab.", 0.5),  # all symbols, no place
        ("sort", "bca=", "acb.", 0.5 + 0.5 / 3),  # one place of three
        ("sort", "bca=", "a.", 0.5 * 2 / 4 + 0.5 / 3),  # one symbol of three, in its place
        ("sort", "bca=", "abcaaa", 0.5 * 6 / 9 + 0.5 * 3 / 6),  # does not end
        ("expression", "17=", "9+8.", 1.0),
        ("expression", "17=", "9+4.", 13 / 17),
        ("expression", "17=", "17+17.", 0.5),  # twice what was asked for
        ("expression", "17=", "17.", 0.5),  # nothing was added
        ("expression", "17=", "+17.", 0.5),  # a sign adds nothing either
        ("expression", "17=", "9+.", 0.0),  # not an expression
        ("expression", "17=", "9=8+1.", 0.0),
        ("expression", "17=", "09+8.", 0.0),  # the shell takes it for octal
        ("expression", "17=", "9" * 40 + "+1.", 0.0),  # more than the shell can hold
        ("lookup", "bca=", "bca?ed=ed.", 1.0),
        ("lookup", "bca=", "bca?ed=", 0.5),  # asked the right thing, said nothing
        ("lookup", "bca=", "bca?ed=de.", 0.5 + 0.5 * 0.5),
        ("lookup", "bca=", "abc?fa=fa.", 0.5 * 0.5 + 0.5),  # asked the wrong one, said its answer
        ("lookup", "bca=", "bca?", 0.0),  # cut off before the tool's answer
        ("lookup", "bca=", "ed.", 0.0),  # guessed
    ],
)
def test_a_response_is_graded_by_how_right_it_is(
    kind: str, prompt: str, response: str, grade: float
) -> None:
    task = task_of(TrainerConfig(task=kind))
    found = task.grade(task.tokenize(prompt), task.tokenize(response))
    assert found == pytest.approx(grade, abs=1e-9)


# sort, reverse, copy


def test_strings_have_the_stated_lengths_and_symbols() -> None:
    prompts = task_of(TrainerConfig(symbols=4, longest=5)).prompts(300, "7/1")
    assert {len(p) for p in prompts} == {3, 4, 5, 6}
    assert {token for p in prompts for token in p[:-1]} == {A, B, C, D}


def test_the_prompts_of_a_seed_are_those_of_earlier_releases() -> None:
    task = task_of(TrainerConfig())
    prompts = task.prompts(4, "0/0")
    assert [task.text(p) for p in prompts] == ["dfdd=", "edeab=", "bfc=", "adcbc="]
    assert prompts[0] == (5, 7, 5, 5, 1)


# repeat


def repeat(**settings: float) -> Repeat:
    task = task_of(TrainerConfig.of({"task": "repeat", "max_response": 256, **settings}))
    assert isinstance(task, Repeat)
    return task


@pytest.mark.parametrize("variation", [0.0, 0.2, 1.0, 2.0])
def test_the_ladder_has_its_mean_and_a_tail_as_stated(variation: float) -> None:
    ladder = lognormal_ladder(26, 40.0, variation)
    assert ladder == sorted(ladder)
    assert sum(ladder) / 26 == pytest.approx(40, abs=0.5)
    spread = math.sqrt(sum((n - 40) ** 2 for n in ladder) / 26)
    assert spread <= 40 * variation + 0.5  # steps are narrower than what they stand for
    assert spread >= 0.7 * 40 * variation


def test_a_symbol_is_asked_for_as_often_as_it_stands_for() -> None:
    task = repeat(symbols=4, mean_length=5.0, length_tail=0.8)
    assert list(task.counts.values()) == lognormal_ladder(4, 5.0, 0.8) == [2, 3, 5, 10]
    assert task.answer((C, ASK)) == [C] * 5 + [END]
    assert {len(prompt) for prompt in task.prompts(20, "0")} == {2}


def test_a_wrong_count_costs_and_more_so_the_further_it_is() -> None:
    task = repeat(symbols=4, mean_length=5.0, length_tail=0.8)
    grades = [task.grade((C, ASK), [C] * n + [END]) for n in (5, 6, 9, 20)]
    assert grades == sorted(grades, reverse=True)
    assert grades[0] == 1.0 > grades[1]
    assert task.grade((C, ASK), [D] * 5 + [END]) == 0.0


# expression


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Task]:
    """The task, with a program of its own in the place of the shell."""

    def task_with(program: str) -> Task:
        shell = tmp_path / "sh"
        shell.write_text(f"#!/bin/sh\n{program}\n")
        shell.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        return task_of(TrainerConfig(task="expression"))

    return task_with


def test_the_verdict_is_that_of_the_program_which_runs_for_every_sample(
    stand_in: Callable[[str], Task], tmp_path: Path
) -> None:
    task = stand_in(f"echo 34; echo again >> {tmp_path / 'runs'}")
    prompt, response = task.tokenize("17="), task.tokenize("16+1.")
    assert [task.reward(prompt, response) for _ in range(3)] == [0.5] * 3
    assert (tmp_path / "runs").read_text() == "again\n" * 3


@pytest.mark.parametrize(
    ("program", "limit", "error"),
    [
        ("exec /bin/sleep 60", 0.2, subprocess.TimeoutExpired),
        ("kill -9 $$", 60.0, subprocess.CalledProcessError),
    ],
)
def test_a_verifier_that_hangs_or_is_killed_gives_no_verdict(
    stand_in: Callable[[str], Task],
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    limit: float,
    error: type[Exception],
) -> None:
    monkeypatch.setattr(tasks, "VERIFIER_LIMIT_SECONDS", limit)
    task = stand_in(program)
    with pytest.raises(error):
        task.grade(task.tokenize("17="), task.tokenize("16+1."))


def test_without_a_shell_the_task_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TrainerError, match="needs sh"):
        task_of(TrainerConfig(task="expression"))


def test_numbers_are_sums_of_as_many_terms_as_stated() -> None:
    task = task_of(TrainerConfig(task="expression", symbols=3, shortest=4, longest=5))
    asked = {int(task.text(prompt)[:-1]) for prompt in task.prompts(500, "0")}
    assert asked == set(range(4, 16))


# lookup


@pytest.fixture
def lookup() -> Task:
    return task_of(TrainerConfig(task="lookup"))


def ask(task: Task, query: str) -> str:
    told = task.tool(task.tokenize("bca="), task.tokenize(f"{query}?"))
    assert told is not None
    return task.text(told)


def test_the_tool_answers_calls_only(lookup: Task) -> None:
    prompt = lookup.tokenize("bca=")
    assert lookup.text([lookup.call_token or 0]) == "?"
    for silent in ("", "bca", "bca?ed", "bca?ed=ed."):
        assert lookup.tool(prompt, lookup.tokenize(silent)) is None


def test_the_table_is_the_same_for_all_and_for_good(lookup: Task) -> None:
    assert ask(lookup, "bca") == ask(task_of(TrainerConfig(task="lookup")), "bca")
    assert ask(lookup, "abc?ed=bca") == ask(lookup, "bca")  # a second call
    values = [ask(lookup, a + b) for a in "abcdef" for b in "abcdef"]
    assert len(set(values)) > 15  # of 36: no rule to learn instead of asking
    assert {len(value) for value in values} == {3}


def test_the_tools_tokens_are_not_the_policys(lookup: Task) -> None:
    response, owned = lookup.demonstration(lookup.tokenize("bca="))
    told = ask(lookup, "bca")
    assert lookup.text(response) == f"bca?{told}{told[:-1]}."
    assert owned == [True] * 4 + [False] * 3 + [True] * 3
