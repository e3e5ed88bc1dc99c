"""Samples that TRL's trainer generates itself, and the verdicts on them."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.testing.inside.adapters import buffer_buffer as buffer
from rltrace.testing.inside.adapters import generation, pairs
from rltrace.testing.inside.adapters import trl_verdicts as verdicts
from rltrace.testing.inside.hooks import recorder as recording
from tests.adapters.trl_shapes import END, hooked, message, no_problems, rows


class Profiled:
    """TRL's timed block."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc_val: object, trace: object) -> None:
        pass


Profiled.__enter__ = hooked(  # type: ignore[method-assign]
    Profiled.__enter__, before=verdicts.function_begins
)
Profiled.__exit__ = hooked(  # type: ignore[method-assign]
    Profiled.__exit__, before=verdicts.function_ends
)


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
        self._logs: dict[str, Any] = {"rewards": defaultdict(list)}
        self.table: Any = None

    def _generate(self, prompts: list[Any]) -> Any:
        for _ in range(self.turns):
            self._generate_single_turn()
        return self.generated

    def _generate_single_turn(self) -> None:
        pass

    def _generate_and_score_completions(self, inputs: Any) -> None:
        self._generate(inputs)
        self._calculate_rewards()

    def _calculate_rewards(self) -> Any:
        for name in self.reward_func_names:
            with Profiled(f"Trainer.{name}"):
                pass
        return self.table


Trainer._generate = hooked(  # type: ignore[method-assign]
    Trainer._generate, before=generation.begins, after=generation.ends
)
Trainer._generate_single_turn = hooked(  # type: ignore[method-assign]
    Trainer._generate_single_turn, "rollout", after=generation.turn_ends
)
Trainer._generate_and_score_completions = hooked(  # type: ignore[method-assign]
    Trainer._generate_and_score_completions, after=verdicts.judged
)
Trainer._calculate_rewards = hooked(  # type: ignore[method-assign]
    Trainer._calculate_rewards, before=verdicts.judging, after=verdicts.all_asked
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


def test_functions_of_one_name_have_verdicts_and_seconds_of_their_own(
    recorder: recording.Recorder, run_path: Path
) -> None:
    """TRL's logs have the values of the last one only. Of the ranks this is the second."""
    trainer = Trainer(([[5]] * 2, [[4, END]] * 2, ["x"] * 2))
    trainer.accelerator.process_index, trainer.accelerator.num_processes = 1, 2
    trainer.reward_func_names = ["judge", "length", "judge"]
    table = [[9.0, 9.0, 9.0], [9.0, 9.0, 9.0], [0.5, 7.0, 2.0], [math.nan, 8.0, 3.0]]
    trainer.table = SimpleNamespace(tolist=lambda: table)
    trainer._logs["rewards"] = {
        "judge": deque([9.0, 9.0, 2.0, 3.0], maxlen=4),
        "length": deque([9.0, 9.0, 7.0, 8.0], maxlen=4),
    }
    trainer._generate_and_score_completions(["p"] * 2)
    assert rows(run_path, "select component, value from rewards order by value") == [
        ("judge", 0.5),
        ("judge#2", 2.0),
        ("judge#2", 3.0),
        ("length", 7.0),
        ("length", 8.0),
    ]
    spans = "select s.name, count(*) from spans s join rewards r on r.component = s.name"
    same = "s.start_ns between r.start_ns and r.end_ns"
    assert rows(run_path, f"{spans} and {same} where stage = 'reward' group by 1 order by 1") == [
        ("judge", 1),
        ("judge#2", 2),
        ("length", 2),
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
