"""Samples that TRL's trainers generate themselves, verdicts on them, and weights on their way."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rltrace.testing.inside.adapters import buffer_buffer as buffer
from rltrace.testing.inside.adapters import pairs
from rltrace.testing.inside.adapters import trl_verdicts as verdicts
from rltrace.testing.inside.hooks import Recorder
from tests.adapters.conftest import CAPTURED, Rows
from tests.adapters.trl_shapes import END, hooked, message


@hooked("ProfilingContext")
class Profiled:
    """TRL's timed block."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, exc_val: object, trace: object) -> None: ...


@hooked("GRPOTrainer")
class Trainer:
    """As much of GRPOTrainer as readers look at; `generated` is what `_generate` gives, `turns`
    how often it asks the engine."""

    use_vllm = False
    num_generations = 2
    mask_truncated_completions = True
    reward_func_names = ("one", "other")
    table: Any = None

    def __init__(self, generated: Any = None, turns: int = 1) -> None:
        self.generated, self.turns = generated, turns
        self.model = SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(process_index=0, num_processes=1, is_main_process=True)
        self.state = SimpleNamespace(global_step=3)
        self.eos_token_ids = [END]
        self._tokenizer = SimpleNamespace(eos_token_id=END, pad_token_id=0)
        self._logs: dict[str, Any] = {"rewards": defaultdict(list)}

    def _generate(self, prompts: list[Any]) -> Any:
        for _ in range(self.turns):
            self._generate_single_turn()
        return self.generated

    def _generate_single_turn(self) -> None: ...

    def _generate_and_score_completions(self, inputs: Any) -> None:
        self._generate(inputs)
        self._calculate_rewards()

    def _calculate_rewards(self) -> Any:
        for name in self.reward_func_names:
            with Profiled(f"Trainer.{name}"):
                pass
        return self.table


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is left of the test before."""
    buffer.made = buffer.shuffled = None
    verdicts.scoring.times_ns = {}


def test_a_sample_with_tools_ends_with_its_last_turn(rows: Rows) -> None:
    once = [message("assistant")]
    twice = [message("assistant"), message("tool"), message("assistant")]
    masks = [[1, 1], [1, 1, 0, 0, 0, 1]]
    generated = ([[5], [5]], [[4, END], [4, 4, 6, 6, 6, 4]], masks, [once, twice], None, {})
    Trainer(generated, turns=2)._generate(["p", "p"])
    assert rows(
        "select response_tokens, turns, finish, prompt_tokens, first_version, last_version,"
        " env_ns = 0 from trajectories order by turns"
    ) == [(2, 1, "stop", 1, 3, 3, True), (3, 2, "length", 1, 3, 3, False)]
    assert rows(
        "select count(*) from trajectories t join spans s"
        " on t.end_ns between s.start_ns and s.end_ns where stage = 'rollout'"
    ) == [(2,)]
    assert [sample.masked for sample in buffer.made or ()] == [False, True]
    assert rows(CAPTURED) == [([5], [4, 4, 6, 6, 6, 4]), ([5], [4, END])]


def test_a_batch_that_fails_is_samples_that_failed(rows: Rows) -> None:
    trainer = Trainer()
    trainer._generate_single_turn = lambda: 1 / 0  # type: ignore[method-assign, assignment]
    with pytest.raises(ZeroDivisionError):
        trainer._generate(["p", "q"])
    found = rows("select finish, count(end_ns) from trajectories group by 1")
    assert found == [("error", 2)]
    assert buffer.made is None


def test_evaluation_leaves_no_trajectory(rows: Rows) -> None:
    trainer = Trainer(([[5]], [[4, END]], ["x"]))
    trainer.model.training = False
    trainer._generate(["p"])
    assert rows("select count(*) from trajectories") == [(0,)]
    assert rows("select stage from spans") == [("eval",)]


def test_what_no_function_can_judge_is_an_error_and_what_one_cannot_is_nothing(rows: Rows) -> None:
    trainer = Trainer(([[5]] * 3, [[4, END]] * 3, ["x"] * 3))
    trainer._logs["rewards"] = {
        "one": deque([0.5, math.nan, math.nan], maxlen=3),
        "other": deque([math.nan, 2.0, math.nan], maxlen=3),
    }
    trainer._generate_and_score_completions(["p"] * 3)
    verdicts = rows("select component, value, outcome from rewards order by value, component")
    assert verdicts[:2] == [("one", 0.5, "ok"), ("other", 2.0, "ok")]
    assert verdicts[2:] == [("one", None, "error"), ("other", None, "error")]


def test_functions_of_one_name_have_verdicts_and_seconds_of_their_own(rows: Rows) -> None:
    """TRL's logs have the values of the last one only. Of the ranks this is the second."""
    trainer = Trainer(([[5]] * 2, [[4, END]] * 2, ["x"] * 2))
    trainer.accelerator.process_index, trainer.accelerator.num_processes = 1, 2
    trainer.reward_func_names = ("judge", "length", "judge")
    table = [[9.0, 9.0, 9.0], [9.0, 9.0, 9.0], [0.5, 7.0, 2.0], [math.nan, 8.0, 3.0]]
    trainer.table = SimpleNamespace(tolist=lambda: table)
    trainer._logs["rewards"] = {
        "judge": deque([9.0, 9.0, 2.0, 3.0], maxlen=4),
        "length": deque([9.0, 9.0, 7.0, 8.0], maxlen=4),
    }
    trainer._generate_and_score_completions(["p"] * 2)
    verdicts = {"judge": [0.5], "judge#2": [2.0, 3.0], "length": [7.0, 8.0]}
    found = "select component, list(value order by value) from rewards group by 1"
    assert dict(rows(found)) == verdicts
    assert rows(
        "select s.name, count(*) from spans s join rewards r on r.component = s.name"
        " and s.start_ns between r.start_ns and r.end_ns where stage = 'reward'"
        " group by 1 order by 1"
    ) == [("judge", 1), ("judge#2", 2), ("length", 2)]


@hooked("VLLMClient")
class Client:
    """TRL's client of vLLM."""

    def generate(self) -> dict[str, Any]:
        return {"completion_ids": [[4, 5, END]], "logprobs": None}


@pytest.mark.parametrize(
    ("given", "watched", "kept"),
    [
        ([[4, 5, END]], True, 1),
        ([[6, END]], True, 0),  # tokenized anew
        ([[4, 5, END]], False, None),  # who knows where from
    ],
)
def test_what_a_function_of_the_users_gives_is_held_against_the_engine(
    rows: Rows, given: Any, watched: bool, kept: int | None
) -> None:
    @hooked("GRPOTrainer")
    class Own(Trainer):
        def rollout_func(self) -> None:
            if watched:
                Client().generate()

        def _generate(self, prompts: list[Any]) -> Any:
            self.rollout_func()
            return self.generated

    Own(([[85]], given, None, ["text"], None, {}))._generate(["p"])
    assert rows("select token_ids, logprobs from trajectories") == [(kept, 0)]


# --- online DPO


@hooked("OnlineDPOTrainer")
class Pairs:
    """A batch of two prompts, so of four samples."""

    state = SimpleNamespace(global_step=3)
    processing_class = SimpleNamespace(eos_token_id=END, pad_token_id=0)
    reward_funcs = (len,)

    def _generate(self, prompts: list[str], mask: Any) -> Any:
        return torch.tensor([[0, 5], [6, 7], [0, 5], [6, 7]]), mask

    def _calculate_rewards_from_functions(self, completion_ids_list: Any) -> Any:
        return torch.tensor([0.5, 1.0, 1.5, 2.0])


@pytest.mark.parametrize("on_host", [True, False])
def test_prompts_of_pairs_are_read_on_the_host_only(rows: Rows, on_host: bool) -> None:
    """They are padded tensors; samples are lists."""
    mask = torch.tensor([[0, 1], [1, 1], [0, 1], [1, 1]]).to("cpu" if on_host else "meta")
    trainer = Pairs()
    trainer._generate(["p", "q"], mask)
    lists = [[4, END, 0], [4, 4, 4], [8, END, 0], [END, 0, 0]]
    trainer._calculate_rewards_from_functions(lists)
    prompts = [[5], [6, 7], [5], [6, 7]] if on_host else [None] * 4
    responses = [[4, END], [4, 4, 4], [8, END], [END]]
    joined = "from rewards join trajectories using (trajectory) join captured using (trajectory)"
    ids = "prompt_token_ids, response_token_ids"
    assert rows(f"select {ids}, prompt_tokens, response_tokens {joined} order by value") == [
        (prompt, response, prompt and len(prompt), len(response))
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    verdicts = [(0.5, "stop"), (1.0, "length"), (1.5, "stop"), (2.0, "stop")]
    columns = "value, finish, component, first_version, last_version, turns"
    found = rows(f"select {columns} {joined} order by value")
    assert found == [(*verdict, "len", 3, 3, 1) for verdict in verdicts]


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


# --- weights, that go to engines of the trainer's own or to a server


zeros = partial(torch.zeros, dtype=torch.bfloat16)


class Model:
    """Named parameters; with an adapter that goes with its base."""

    peft_config = None
    prefix = "lora_"

    def named_parameters(self) -> list[tuple[str, Any]]:
        return [
            ("layer.weight", zeros(10)),
            ("layer.lora_A", zeros(3)),
            ("head.original_module.weight", zeros(7)),
        ]


@hooked("VLLMClient")
class Sends:
    """A client that sends tensors one by one."""

    def update_named_param(self, name: str, weights: Any) -> None:
        if isinstance(self, Together):
            self.update_named_params([(name, "torch.bfloat16", [weights.numel()])])


@hooked("VLLMClient")
class Together(Sends):
    """One that sends them together."""

    def update_named_params(self, metadata: Any) -> None: ...


@hooked("VLLMGeneration")
class Generation:
    def __init__(self, mode: str, client: Sends | None = None) -> None:
        self.mode, self.client, self.model = mode, client, Model()

    def sync_weights(self) -> None:
        for size in (10, 20) if self.client else ():
            self.client.update_named_param("name", zeros(size))


def test_an_engine_of_the_trainers_own_is_given_all_but_the_adapter(
    recorder: Recorder, rows: Rows
) -> None:
    recorder.version = 4
    for _ in range(2):
        Generation("colocate").sync_weights()
    found = rows("select version, bytes, buckets, transport from syncs")
    assert found == [(4, 20, 1, "in-process")] * 2


def test_a_client_that_sends_tensors_one_by_one_is_counted_once(rows: Rows) -> None:
    for client in (Sends(), Together()):
        Generation("server", client).sync_weights()
    assert rows("select bytes, buckets, transport from syncs") == [(60, 2, "nccl")] * 2
