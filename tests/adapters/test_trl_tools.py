"""TRL: an agent whose turns are tokenized anew is flagged, and one that keeps its tokens is not.

TRL's own loops run here, taken out of its sources (`make test-trl` unpacks them, and names their
folder in `RLTRACE_TRL_SOURCES`), around a tokenizer that merges a pair of letters.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import enum
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.adapters.trl import TRL
from rltrace.testing.inside.adapters import generation, kept
from rltrace.testing.inside.hooks import recorder as recording
from rltrace.testing.inside.hooks import satisfies
from tests.adapters.sources import Sources
from tests.adapters.trl_shapes import Taken, hook_loop, hooked, message, no_problems, rows

VERSIONS = ("0.28.0", "1.0.0", "1.6.0", "1.9.0", "1.16.0")
SOURCES = Sources(os.environ.get("RLTRACE_TRL_SOURCES", ""), TRL, VERSIONS)

needs_sources = pytest.mark.elsewhere(not SOURCES.folder)
MERGED = 1000
END = ord(".")
ROLES = {"user": "U", "assistant": "A", "tool": "T"}


class Tokenizer:
    """A token a letter, but for `ab`, which is one. A message is its role, text, and an end."""

    eos_token_id, pad_token_id = END, 0

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text.replace("ab", chr(MERGED))]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids)).replace(chr(MERGED), "ab")

    def apply_chat_template(
        self, messages: list[Any], add_generation_prompt: bool = False, **_: Any
    ) -> Any:
        if messages and isinstance(messages[0], list):
            return [self.apply_chat_template(each, add_generation_prompt) for each in messages]
        text = "".join(f"{ROLES[each['role']]}{each['content']}." for each in messages)
        return self.encode(text + "A" * add_generation_prompt)


def parse_response(tokenizer: Tokenizer, ids: list[int], **_: Any) -> dict[str, Any]:
    """A message of the policy's; one with an `a` calls a tool."""
    said = tokenizer.decode(ids).rstrip(".")
    answer: dict[str, Any] = {"role": "assistant", "content": said}
    if "a" in said:
        call = {"type": "function", "function": {"name": "look", "arguments": {}}}
        answer["tool_calls"] = [call]
    return answer


def taken_out(version: str, module: str, *names: str, **known: Any) -> dict[str, Any]:
    """Functions and classes of TRL's, made of their source alone."""
    made = {"__name__": __name__, **known}
    for name in names:
        found = SOURCES.find(version, module, name)
        if found is not None:
            whole = ast.Module([ast.parse("from __future__ import annotations").body[0], found], [])
            exec(compile(whole, f"{module} of {version}", "exec"), made)
    return {name.rpartition(".")[2]: made.get(name.rpartition(".")[2]) for name in names}


class Trainer:
    """As much of GRPOTrainer as its tool loop needs; the engine gives `turns`."""

    use_vllm = _is_vlm = False
    environment_factories = rollout_func = chat_template = None
    max_completion_length, max_tool_calling_iterations = 100, 5
    chat_template_kwargs: dict[str, Any] = {}  # noqa: RUF012
    eos_token_id, eos_token_ids, num_generations = END, [END], 1
    mask_truncated_completions = False
    tools = ["look"]  # noqa: RUF012
    processing_class = _tokenizer = Tokenizer()
    accelerator = SimpleNamespace(process_index=0, num_processes=1, is_main_process=True)
    state = SimpleNamespace(global_step=3)
    _sync_tool_dicts = [{"look": lambda: "r"}] * 2
    _async_tool_dicts = [{}] * 2
    _sync_tool_dict, _async_tool_dict = _sync_tool_dicts[0], _async_tool_dicts[0]

    def __init__(self, version: str, turns: list[list[list[int]]]) -> None:
        module = "trl.trainer.grpo_trainer"
        names = ("GRPOTrainer._tool_call_loop", "GRPOTrainer._get_tool_suffix_ids")
        self._own = taken_out(version, module, *names, asyncio=asyncio,
                              parse_response=parse_response)  # fmt: skip
        self._old = satisfies(version, "<1.0")
        self.turns = list(turns)
        config = SimpleNamespace(max_position_embeddings=100)
        self.model = SimpleNamespace(training=True, config=config)

    def _get_tool_suffix_ids(self, messages: Any) -> Any:
        return self._own["_get_tool_suffix_ids"](self, messages)

    def _generate_single_turn(self, prompts: Any, *_: Any, **__: Any) -> Any:
        ids = self.turns.pop(0)
        log_probs = [[0.0] * len(each) for each in ids]
        if self._old:  # it is given messages
            return self._tokenizer.apply_chat_template(prompts, True), ids, log_probs, {}
        return ids, log_probs

    def _generate(self, prompts: list[Any]) -> Any:
        prompt_ids = self._tokenizer.apply_chat_template(prompts, True)
        given = self._generate_single_turn(prompts)
        ids, log_probs = given[1:3] if self._old else given
        said = [[parse_response(self._tokenizer, each)] for each in ids]
        more = () if self._old else (None, {})
        mask, said, ids, log_probs, *_ = self._own["_tool_call_loop"](
            self, prompts, prompt_ids, ids, said, log_probs, *more
        )
        return prompt_ids, ids, mask, said, log_probs, {}


Trainer._generate_single_turn = hooked(  # type: ignore[method-assign]
    Trainer._generate_single_turn, "rollout", after=generation.turn_ends
)
Trainer._generate = hooked(  # type: ignore[method-assign]
    Trainer._generate, before=generation.begins, after=generation.ends
)


@needs_sources
@pytest.mark.parametrize("version", VERSIONS)
def test_a_turn_that_is_tokenized_anew_after_a_tool_is_flagged(
    recorder: recording.Recorder, run_path: Path, version: str
) -> None:
    """The policy has sampled `a` and `b`, which a tokenizer makes one of (TRL before 1.0), and
    another sample needs no tool."""
    encode, prompt = Trainer._tokenizer.encode, [{"role": "user", "content": "q"}]
    turns = [[[ord("a"), ord("b"), END], encode("c.")], [encode("d.")]]
    trainer = Trainer(version, turns)
    trainer._generate([[*prompt], [*prompt]])
    assert trainer.turns == []
    found = rows(run_path, "select turns, token_ids, logprobs from trajectories order by turns")
    assert found == [(1, 1, 1), (2, int(satisfies(version, ">=1.0")), 1)]
    assert no_problems(run_path)


@needs_sources
def test_a_text_that_is_tokenized_as_it_was_sampled_is_none(
    recorder: recording.Recorder, run_path: Path
) -> None:
    encode, prompt = Trainer._tokenizer.encode, [{"role": "user", "content": "q"}]
    Trainer("0.28.0", [[encode("ab.")], [encode("d.")]])._generate([prompt])
    assert rows(run_path, "select turns, token_ids from trajectories") == [(2, 1)]


# --- a function of the user's


class Client:
    """TRL's client of vLLM."""

    def __init__(self, samples: list[list[int]]) -> None:
        self.samples = samples

    def _generate(self) -> dict[str, Any]:
        return {"completion_ids": self.samples, "logprobs": None}

    generate = hooked(_generate, after=kept.answered)


@pytest.mark.parametrize(
    ("generated", "watched", "expected"),
    [
        ([[97, 98, END]], True, 1),
        ([[MERGED, END]], True, 0),
        ([[97, 98, END]], False, None),  # who knows where from
    ],
)
def test_what_a_function_of_the_users_gives_is_held_against_the_engine(
    recorder: recording.Recorder, run_path: Path, generated: Any, watched: bool, expected: int
) -> None:
    class Own(Trainer):
        def __init__(self) -> None:
            self.model = SimpleNamespace(training=True)

        rollout_func = staticmethod(lambda client: client.generate() if watched else None)
        _generate = hooked(
            lambda self, prompts: (
                self.rollout_func(Client([[97, 98, END]])),
                ([[85]], generated, None, ["ab"], None, {}),
            )[1],
            before=generation.begins,
            after=generation.ends,
        )

    Own()._generate(["p"])
    assert rows(run_path, "select token_ids, logprobs from trajectories") == [(expected, 0)]
    assert no_problems(run_path)


# --- conversations of the asynchronous trainer, which tokenizes all of them anew each turn


class Loop:
    """TRL's worker with an engine that gives `turns`."""

    model_version, max_tokens, tokenizer = 1, 100, Tokenizer()
    reward_func_names, reward_funcs = (), ()

    def __init__(self, sequences: Callable[..., Any]) -> None:
        self.sequences = sequences

    async def _generate_one(self, prompt: str, turns: list[Any]) -> Any:
        for turn in turns:
            await self._generate_one_turn(turn.output_ids)
        found, _ = self.sequences(turns, "", 2)
        said = [message("assistant")]
        return said, [Taken(each.input_ids, each.completion_mask, 1, said) for each in found]

    async def _generate_one_turn(self, ids: list[int]) -> Any:
        return ids, [0.0] * len(ids)

    async def _score_group(self, samples: list[Taken]) -> list[Taken]:
        return samples


hook_loop(Loop)


@needs_sources
@pytest.mark.parametrize(
    ("said_again", "samples"),
    [
        ([97, 97, 98, 98, END], 1),  # the next turn's prompt begins with what there is
        ([97, 97, 98, 98], 1),  # ... or differs in its last token, which is not trained on then
        ([97, MERGED, 98, END], 2),  # ... or in more: there are two samples
    ],
)
def test_drift_that_trl_takes_out_of_training_is_no_loss(
    recorder: recording.Recorder, run_path: Path, said_again: list[int], samples: int
) -> None:
    module = "trl.experimental.async_grpo.async_rollout_worker"
    names = ("TurnRecord", "TrainingSequence", "_common_prefix_len", "DriftKind", "_SampleBuilder",
             "_chain_to_sequences")  # fmt: skip
    trl = taken_out("1.16.0", module, *names, dataclass=dataclasses.dataclass,
                    field=dataclasses.field, enum=enum)  # fmt: skip
    turn, first = trl["TurnRecord"], [97, 97, 98, 98, END]
    second = turn([85, *said_again, 84], [100, END], [0.0] * 2)
    turns = [turn([85], first, [0.0] * 5), second]

    async def roll_out() -> None:
        worker = Loop(trl["_chain_to_sequences"])
        _, made = await worker._generate_one("prompt", turns)
        await worker._score_group(made)

    asyncio.run(roll_out())
    found = rows(run_path, "select count(*), min(token_ids), max(token_ids) from trajectories")
    assert found == [(samples, 1, 1)]
    assert no_problems(run_path)
