"""TRL: an agent whose turns are tokenized anew is flagged, and one that keeps its tokens is not.

TRL's own loops run here, taken out of its sources (`make test-trl` unpacks them), around a
tokenizer that merges a pair of letters.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import enum
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.testing.inside.trace import satisfies
from tests.adapters.conftest import Rows
from tests.adapters.sources import TRL
from tests.adapters.trl_shapes import ASYNC, Loop, Taken, hooked, message

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
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    answer = {"role": "assistant", "content": said}
    return answer | {"tool_calls": [call]} if "a" in said else answer


def taken_out(version: str, module: str, *names: str, **known: Any) -> dict[str, Any]:
    """Functions and classes of TRL's, made of their source alone."""
    made = {"__name__": __name__, **known}
    for name in names:
        place = TRL.trees[version].find(module, name)
        if place is not None:
            source = f"from __future__ import annotations\n{ast.unparse(place[1])}"
            exec(compile(source, f"{module} of {version}", "exec"), made)
    return made


@hooked("GRPOTrainer")
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
    config = SimpleNamespace(max_position_embeddings=100)
    model = SimpleNamespace(training=True, config=config)
    _sync_tool_dicts = [{"look": lambda: "r"}] * 2
    _async_tool_dicts = [{}] * 2
    _sync_tool_dict, _async_tool_dict = _sync_tool_dicts[0], _async_tool_dicts[0]

    def __init__(self, version: str, turns: list[list[list[int]]]) -> None:
        names = ("GRPOTrainer._tool_call_loop", "GRPOTrainer._get_tool_suffix_ids")
        known = {"asyncio": asyncio, "parse_response": parse_response}
        self._own = taken_out(version, "trl.trainer.grpo_trainer", *names, **known)
        self._old = satisfies(version, "<1.0")
        self.turns = list(turns)

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


@TRL.needed
@pytest.mark.parametrize(
    ("version", "sampled", "kept"),
    [
        *((version, [97, 98, END], satisfies(version, ">=1.0")) for version in TRL.versions),
        ("0.28.0", [MERGED, END], True),
    ],
)
def test_a_turn_that_is_tokenized_anew_after_a_tool_is_flagged(
    rows: Rows, version: str, sampled: list[int], kept: bool
) -> None:
    """Where the policy has sampled `a` and `b`, which a tokenizer makes one of (TRL before 1.0),
    and another sample needs no tool."""
    encode, prompt = Trainer._tokenizer.encode, {"role": "user", "content": "q"}
    trainer = Trainer(version, [[sampled, encode("c.")], [encode("d.")]])
    trainer._generate([[prompt], [prompt]])
    assert trainer.turns == []
    found = rows("select turns, token_ids, logprobs from trajectories order by turns")
    assert found == [(1, 1, 1), (2, int(kept), 1)]


# --- conversations of the asynchronous trainer, which tokenizes all of them anew each turn

WORKER = f"{ASYNC}.async_rollout_worker"


@hooked(f"{WORKER}:_AsyncRolloutLoop")
class Sequences(Loop):
    """TRL's worker with an engine that gives `turns`, of which it makes samples."""

    reward_func_names = reward_funcs = ()

    def __init__(self, sequences: Callable[..., Any]) -> None:
        self.sequences = sequences

    async def _generate_one(self, prompt: str, turns: list[Any]) -> Any:
        for turn in turns:
            await self._generate_one_turn(turn.output_ids)
        found, _ = self.sequences(turns, "", 2)
        said = [message("assistant")]
        return said, [Taken(each.input_ids, each.completion_mask, 1, said) for each in found]


@TRL.needed
@pytest.mark.parametrize(
    ("said_again", "samples"),
    [
        ([97, 97, 98, 98, END], 1),  # the next turn's prompt begins with what there is
        ([97, 97, 98, 98], 1),  # ... or differs in its last token, which is not trained on then
        ([97, MERGED, 98, END], 2),  # ... or in more: there are two samples
    ],
)
def test_drift_that_trl_takes_out_of_training_is_no_loss(
    rows: Rows, said_again: list[int], samples: int
) -> None:
    names = ("TurnRecord", "TrainingSequence", "_common_prefix_len", "DriftKind", "_SampleBuilder",
             "_chain_to_sequences")  # fmt: skip
    known = {"dataclass": dataclasses.dataclass, "field": dataclasses.field, "enum": enum}
    trl = taken_out("1.16.0", WORKER, *names, **known)
    turn, first = trl["TurnRecord"], [97, 97, 98, 98, END]
    second = turn([85, *said_again, 84], [100, END], [0.0] * 2)

    async def roll_out() -> None:
        worker = Sequences(trl["_chain_to_sequences"])
        _, made = await worker._generate_one("prompt", [turn([85], first, [0.0] * 5), second])
        await worker._score_group(made)

    asyncio.run(roll_out())
    found = rows("select count(*), min(token_ids), max(token_ids) from trajectories")
    assert found == [(samples, 1, 1)]
