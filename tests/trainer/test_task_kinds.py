"""Each kind of task: what it asks, and how wrong answers are graded."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rltrace.testing.inside.trainer import (
    ASK,
    END,
    FIRST_SYMBOL,
    Task,
    TrainerConfig,
    TrainerError,
    task_of,
)
from rltrace.trainer.tasks import expression as expression_task
from rltrace.trainer.tasks.repeat import Repeat, lognormal_ladder

A, B, C, D = range(FIRST_SYMBOL, FIRST_SYMBOL + 4)


# sort, reverse, copy


@pytest.mark.parametrize(
    ("rule", "answer"),
    [("sort", [A, B, C, END]), ("reverse", [A, C, B, END]), ("copy", [B, C, A, END])],
)
def test_rules(rule: str, answer: list[int]) -> None:
    assert task_of(TrainerConfig(task=rule)).answer((B, C, A, ASK)) == answer


@pytest.mark.parametrize(
    ("response", "grade"),
    [
        ([END], 0.0),
        ([D, D, END], 0.0),
        ([C, A, B, END], 0.5),  # all symbols, no place
        ([A, C, B, END], 0.5 + 0.5 / 3),  # one place of three
        ([A, END], 0.5 * 2 / 4 + 0.5 / 3),  # one symbol of three, in its place
        ([A, B, C, A, A, A], 0.5 * 6 / 9 + 0.5 * 3 / 6),  # does not end
    ],
)
def test_partial_grades(response: list[int], grade: float) -> None:
    assert task_of(TrainerConfig()).grade((B, C, A, ASK), response) == pytest.approx(grade)


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
def expression() -> Task:
    return task_of(TrainerConfig(task="expression"))


@pytest.mark.parametrize(
    ("response", "grade"),
    [
        ("9+8.", 1.0),
        ("1+2+14.", 1.0),
        ("9+4.", 13 / 17),
        ("17+17.", 0.5),  # twice what was asked for
        ("17.", 0.5),  # nothing was added
        ("+17.", 0.5),  # a sign adds nothing either
        ("9+.", 0.0),  # not an expression
        ("9=8+1.", 0.0),
        ("09+8.", 0.0),  # the shell takes it for octal
        (".", 0.0),
        ("9" * 40 + "+1.", 0.0),  # more than the shell can hold
    ],
)
def test_a_sum_is_graded_by_what_the_shell_makes_of_it(
    expression: Task, response: str, grade: float
) -> None:
    prompt, given = expression.tokenize("17="), expression.tokenize(response)
    assert expression.grade(prompt, given) == pytest.approx(grade, abs=1e-9)


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


def test_the_verdict_is_that_of_the_program(stand_in: Callable[[str], Task]) -> None:
    task = stand_in("echo 34")
    assert task.grade(task.tokenize("17="), task.tokenize("16+1.")) == 0.5


def test_a_verifier_that_hangs_gives_no_verdict(
    stand_in: Callable[[str], Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expression_task, "VERIFIER_LIMIT_SECONDS", 0.2)
    task = stand_in("exec /bin/sleep 60")
    with pytest.raises(subprocess.TimeoutExpired):
        task.grade(task.tokenize("17="), task.tokenize("16+1."))


def test_a_verifier_that_is_killed_gives_no_verdict(stand_in: Callable[[str], Task]) -> None:
    task = stand_in("kill -9 $$")
    with pytest.raises(subprocess.CalledProcessError, match="died with"):
        task.grade(task.tokenize("17="), task.tokenize("16+1."))


def test_without_a_shell_the_task_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TrainerError, match=r"^the task expression needs sh, and there is none on"):
        task_of(TrainerConfig(task="expression"))


def test_terms_are_digits() -> None:
    with pytest.raises(TrainerError, match=r"^symbols must be at most 9, the digits, not 10$"):
        task_of(TrainerConfig(task="expression", symbols=10))


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


@pytest.mark.parametrize(
    ("response", "grade"),
    [
        ("bca?ed=ed.", 1.0),
        ("bca?ed=", 0.5),  # asked the right thing, said nothing
        ("bca?ed=de.", 0.5 + 0.5 * 0.5),
        ("abc?fa=fa.", 0.5 * 0.5 + 0.5),  # asked the wrong thing, said what was told
        ("bca?", 0.0),  # cut off before the tool's answer
        ("ed.", 0.0),  # guessed
        ("bca=ed=ed.", 0.0),
    ],
)
def test_query_and_answer_count_half_each(lookup: Task, response: str, grade: float) -> None:
    prompt = lookup.tokenize("bca=")
    assert lookup.grade(prompt, lookup.tokenize(response)) == pytest.approx(grade)
