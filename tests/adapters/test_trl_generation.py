"""Samples that TRL's trainer generates itself, and the verdicts on them."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.adapters.trl import generation, pairs, verdicts
from rltrace.adapters.trl.buffer import buffer
from rltrace.hooks import recorder as recording
from tests.adapters.trl_shapes import END, hooked, message, no_problems, rows


class Trainer:
    """As much of GRPOTrainer as readers look at; `generated` is what `_generate` gives, `turns`
    how often it asks the engine."""

    def __init__(self, generated: Any = None, turns: int = 1) -> None:
        self.generated, self.turns = generated, turns
        self.model = SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(process_index=0, num_processes=1, is_main_process=True)
        self.state = SimpleNamespace(global_step=3)
        self.num_generations = 2
        self.eos_token_ids = [END]
        self._tokenizer = SimpleNamespace(eos_token_id=END, pad_token_id=0)
        self.mask_truncated_completions = True
        self.use_vllm = False
        self.reward_func_names = ["one", "other"]
        self._logs: dict[str, Any] = {"rewards": {}}

    def _generate(self, prompts: list[Any]) -> Any:
        for _ in range(self.turns):
            self._generate_single_turn()
        return self.generated

    def _generate_single_turn(self) -> None:
        pass

    def _generate_and_score_completions(self, inputs: Any) -> None:
        self._generate(inputs)


Trainer._generate = hooked(  # type: ignore[method-assign]
    Trainer._generate, before=generation.begins, after=generation.ends
)
Trainer._generate_single_turn = hooked(  # type: ignore[method-assign]
    Trainer._generate_single_turn, "rollout", after=generation.turn_ends
)
Trainer._generate_and_score_completions = hooked(  # type: ignore[method-assign]
    Trainer._generate_and_score_completions, after=verdicts.judged
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is left of the test before."""
    buffer.made = buffer.shuffled = None
    verdicts.scoring.times_ns = {}


def test_a_sample_with_tools_ends_with_its_last_turn(
    recorder: recording.Recorder, run_path: Path
) -> None:
    once = [message("assistant")]
    twice = [message("assistant"), message("tool"), message("assistant")]
    masks = [[1, 1], [1, 1, 0, 0, 0, 1]]
    generated = ([[5], [5]], [[4, END], [4, 4, 6, 6, 6, 4]], masks, [once, twice], None, {})
    Trainer(generated, turns=2)._generate(["p", "p"])
    assert rows(
        run_path,
        "select response_tokens, turns, finish, prompt_tokens, first_version, last_version,"
        " env_ns = 0 from trajectories order by turns",
    ) == [(2, 1, "stop", 1, 3, 3, True), (3, 2, "length", 1, 3, 3, False)]
    assert rows(
        run_path,
        "select count(*) from trajectories t join spans s"
        " on t.end_ns between s.start_ns and s.end_ns where stage = 'rollout'",
    ) == [(2,)]
    assert [sample.masked for sample in buffer.made or ()] == [False, True]
    assert no_problems(run_path)


def test_a_batch_that_fails_is_samples_that_failed(
    recorder: recording.Recorder, run_path: Path
) -> None:
    trainer = Trainer()
    trainer._generate_single_turn = lambda: 1 / 0  # type: ignore[method-assign, assignment]
    with pytest.raises(ZeroDivisionError):
        trainer._generate(["p", "q"])
    assert rows(run_path, "select finish, count(end_ns) from trajectories group by 1") == [
        ("error", 2)
    ]
    assert buffer.made is None


def test_evaluation_leaves_no_trajectory(recorder: recording.Recorder, run_path: Path) -> None:
    trainer = Trainer(([[5]], [[4, END]], ["x"]))
    trainer.model.training = False
    trainer._generate(["p"])
    assert rows(run_path, "select count(*) from trajectories") == [(0,)]
    assert generation.turn_stage(SimpleNamespace(self=trainer)) == "eval"  # type: ignore[arg-type]


def test_what_no_function_can_judge_is_an_error_and_what_one_cannot_is_nothing(
    recorder: recording.Recorder, run_path: Path
) -> None:
    trainer = Trainer(([[5]] * 3, [[4, END]] * 3, ["x"] * 3))
    trainer._logs["rewards"] = {
        "one": deque([0.5, math.nan, math.nan], maxlen=3),
        "other": deque([math.nan, 2.0, math.nan], maxlen=3),
    }
    trainer._generate_and_score_completions(["p"] * 3)
    assert rows(
        run_path,
        "select component, value, outcome from rewards order by value nulls last, component",
    ) == [
        ("one", 0.5, "ok"),
        ("other", 2.0, "ok"),
        ("one", None, "error"),
        ("other", None, "error"),
    ]
    assert no_problems(run_path)


@pytest.mark.parametrize(
    ("ids", "pad", "expected"),
    [
        ([4, 4, END, 0, 0], 0, (3, True)),
        ([4, 4, 4], 0, (3, False)),
        ([4, 4, 0, 0], 0, (2, False)),
        ([4, END, END, END], END, (2, True)),
        ([], 0, (0, False)),
    ],
)
def test_the_length_of_a_sample_that_is_filled_up(
    ids: list[int], pad: int, expected: tuple[int, bool]
) -> None:
    assert pairs._length(ids, {END}, pad) == expected
