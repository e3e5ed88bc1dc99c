"""What the TRL adapter reads where no real run of the tests comes by: tools, engines of the
trainer's own, conversations of several rows, samples that come twice, reward functions at odds.
`tests/trl` runs TRL itself.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rltrace
from rltrace.adapters.trl import generation, objective, pairs, queued, rollouts, verdicts, weights
from rltrace.adapters.trl.buffer import buffer
from rltrace.adapters.trl.loop import loop
from rltrace.adapters.trl.rollouts import Ids, lengths
from rltrace.analysis.lag_priors import prior_for
from rltrace.hooks import recorder as recording
from rltrace.hooks.hook import Hook
from rltrace.hooks.observing import Observer
from rltrace.hooks.wrapping import wrap

END = 9


def hooked(function: Any, stage: Any = None, **readers: Any) -> Any:
    """A function with a hook on it."""
    return wrap(function, Observer(Hook("trl:function", stage, **readers)))


def rows(run_path: Path, query: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = rltrace.open_run(run_path).sql(query).fetchall()
    return found


def no_problems(run_path: Path) -> bool:
    return [p for p in rltrace.open_run(run_path).problems if p["what"] != "no-gpu"] == []


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
    buffer.made = buffer.shuffled = loop.micro = None
    queued._Queue.buffer = queued._Queue.last = None
    queued._Queue.given.clear()
    queued._Queue.batches.clear()
    rollouts._waiting.clear()
    verdicts.scoring.times_ns = {}


def message(role: str) -> dict[str, str]:
    return {"role": role, "content": ""}


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


class Parameter:
    """A tensor by its size."""

    def __init__(self, elements: int, width: int = 2) -> None:
        self.elements, self.width = elements, width

    def numel(self) -> int:
        return self.elements

    def element_size(self) -> int:
        return self.width


class Model:
    """Named parameters; with an adapter that goes with its base."""

    peft_config = None
    prefix = "lora_"

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        return [
            ("layer.weight", Parameter(10)),
            ("layer.lora_A", Parameter(3)),
            ("head.original_module.weight", Parameter(7)),
        ]


def test_an_engine_of_the_trainers_own_is_given_all_but_the_adapter(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.version = 4
    owner = SimpleNamespace(mode="colocate", model=Model())
    sync = hooked(lambda self: None, "sync", before=weights.begins, after=weights.ends)
    sync(owner)
    sync(owner)
    assert (
        rows(run_path, "select version, bytes, buckets, transport from syncs")
        == [(4, 20, 1, "in-process")] * 2
    )


def test_a_client_that_sends_tensors_one_by_one_is_counted_once(
    recorder: recording.Recorder, run_path: Path
) -> None:
    class Old:
        """Before they were sent together."""

    class New(Old):
        def update_named_params(self) -> None:
            """They are."""

    class Generation:
        mode = "server"

        def sync(self, client: Any) -> None:
            for size in (10, 20):
                send(client, "name", Parameter(size))

    def update_named_param(self: Any, name: str, weights: Any) -> None:
        if hasattr(self, "update_named_params"):
            together(self, [(name, "torch.bfloat16", [weights.numel()])])

    def update_named_params(self: Any, metadata: Any) -> None:
        pass

    send = hooked(update_named_param, before=weights.tensor_sent)
    together = hooked(update_named_params, before=weights.described)
    sync = hooked(Generation.sync, "sync", before=weights.begins, after=weights.ends)
    for client in (Old(), New()):
        sync(Generation(), client)
    assert rows(run_path, "select bytes, buckets, transport from syncs") == [(60, 2, "nccl")] * 2
    assert no_problems(run_path)


# --- the asynchronous trainer's queue


class Array(list[int]):
    """As NumPy's: with a sum, the first of the largest, and its bytes."""

    def sum(self) -> int:
        return sum(self)

    def argmax(self) -> int:
        return self.index(max(self))

    def tobytes(self) -> bytes:
        return b"".join(number.to_bytes(8, "little") for number in self)


class Taken:
    """A sample as TRL pickles it: fields and no room for others."""

    __slots__ = ("completion", "completion_mask", "input_ids", "metrics", "model_version")

    def __init__(
        self, ids: list[int], mask: list[int], version: int = 1, completion: Any = None, **of: float
    ) -> None:
        self.input_ids, self.completion_mask, self.model_version = ids, mask, version
        self.completion = completion
        self.metrics = {f"rewards/{name}": value for name, value in of.items()}


def test_lists_and_arrays_are_the_same_sample() -> None:
    as_lists, as_arrays = Taken([5, 6, 7], [0, 1, 1]), Taken(Array([5, 6, 7]), Array([0, 1, 1]))
    assert lengths(as_lists) == lengths(as_arrays) == (1, 2)
    assert lengths(Taken([5], [0])) == lengths(Taken(Array([5]), Array([0]))) == (1, 0)
    one, other = Ids(), Ids()
    assert one.of(as_lists) == other.of(as_arrays)


def test_equal_samples_are_told_apart_by_their_order() -> None:
    made, taken = Ids(), Ids()
    samples = [Taken([5, 6], [0, 1]), Taken([5, 7], [0, 1]), Taken([5, 6], [0, 1])]
    ids = [made.of(sample) for sample in samples]
    assert len(set(ids)) == 3
    assert [taken.of(sample) for sample in samples] == ids
    assert made.of(Taken([5, 6], [0, 1], version=2)) not in ids


class Loop:
    """A rollout process: conversations whose verdicts come a group at a time."""

    model_version = 1
    max_tokens = 4
    eos_token_ids = (END,)
    reward_func_names = ("one",)

    def __init__(self) -> None:
        self.reward_funcs = [lambda: None]

    async def _generate_one(self, prompt: Any, turns: list[list[int]]) -> Any:
        for ids in turns:
            await self._generate_one_turn(ids)
            self.model_version += 1
        return ([message("assistant")], [], None)

    async def _generate_one_turn(self, ids: list[int]) -> Any:
        await asyncio.sleep(0)
        return ids, [0.0] * len(ids)

    async def _score_group(self, samples: list[Taken]) -> list[Taken]:
        return samples


Loop._generate_one = hooked(  # type: ignore[method-assign]
    Loop._generate_one, before=rollouts.begins, after=rollouts.ends
)
Loop._generate_one_turn = hooked(  # type: ignore[method-assign]
    Loop._generate_one_turn, "rollout", before=rollouts.asks, after=rollouts.turn_ends
)
Loop._score_group = hooked(  # type: ignore[method-assign]
    Loop._score_group, "reward", before=rollouts.judging, after=rollouts.judged
)


def test_a_conversation_of_several_rows_is_several_samples(
    recorder: recording.Recorder, run_path: Path
) -> None:
    async def roll_out() -> list[Taken]:
        worker = Loop()
        said, *_ = await worker._generate_one("prompt", [[4, 4, 4, 4], [4, END]])
        forks = [
            Taken([1, 4, 4], [0, 1, 1], 1, said, one=0.5),
            Taken([1, 2, 4], [0, 0, 1], 1, said),
        ]
        return await worker._score_group(forks)

    forks = asyncio.run(roll_out())
    found = rows(
        run_path,
        "select trajectory, response_tokens, prompt_tokens, turns, finish, first_version,"
        " last_version from trajectories order by response_tokens desc",
    )
    taken = Ids()
    first, second = (taken.of(fork) for fork in forks)
    assert found == [(first, 2, 1, 2, "stop", 1, 3), (second, 1, 2, 2, "stop", 1, 3)]
    assert rows(run_path, 'select count(distinct "group"), count("group") from trajectories') == [
        (1, 2)
    ]
    assert rows(run_path, "select trajectory, value, outcome from rewards order by value") == [
        (first, 0.5, "ok"),
        (second, None, "error"),
    ]
    assert not rollouts._waiting
    assert no_problems(run_path)


def test_conversations_that_nobody_judges_make_room_for_others(
    recorder: recording.Recorder, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "_MOST", 2)

    async def roll_out() -> None:
        worker = Loop()
        said = [(await worker._generate_one("prompt", [[4, END]]))[0] for _ in range(3)]
        assert len(rollouts._waiting) == 2
        await worker._score_group([Taken([1, 4], [0, 1], 1, said[-1], one=0.5)])

    asyncio.run(roll_out())
    assert rows(run_path, "select value from rewards where outcome = 'ok'") == [(0.5,)]


def test_a_conversation_that_is_cancelled_is_aborted(
    recorder: recording.Recorder, run_path: Path
) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(Loop()._generate_one("prompt", [[4]] * 1000))
        for _ in range(10):  # it is at its tenth turn by then, on any machine
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    assert rows(run_path, "select finish, count(end_ns) from trajectories group by 1") == [
        ("abort", 1)
    ]


class Dataset:
    """TRL's end of the queue, which drops what is too old."""

    def __init__(self, samples: list[Taken]) -> None:
        self.queue = Buffer(samples)

    def __iter__(self) -> Any:
        while self.queue.samples:
            sample = self.queue.get()
            if sample.model_version >= 2:
                yield {"input_ids": sample.input_ids}


class Buffer:
    def __init__(self, samples: list[Taken]) -> None:
        self.samples = samples

    def get(self) -> Taken:
        return self.samples.pop(0)


Buffer.get = hooked(Buffer.get, after=queued.taken)  # type: ignore[method-assign]
Dataset.__init__ = hooked(Dataset.__init__, after=queued.queue_known)  # type: ignore[method-assign]
Dataset.__iter__ = hooked(Dataset.__iter__, "wait", after=queued.given)  # type: ignore[method-assign]


def test_samples_keep_their_ids_through_the_queue_and_stale_ones_are_told(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.step, recorder.version = 7, 3
    samples = [Taken([5, n], [0, 1], version) for n, version in enumerate((2, 1, 1, 2, 2))]
    known = Ids()
    ids = [known.of(sample) for sample in samples]
    mappings = list(Dataset(list(samples)))
    collate = hooked(lambda self, examples: None, after=queued.collated)
    trainer = SimpleNamespace(model_version=3)
    collate(trainer, [[SimpleNamespace(samples=mappings[:2])]])
    collate(trainer, [mappings[2:]])
    for expected in ([ids[0], ids[3]], [ids[4]]):
        queued.micro_begins(SimpleNamespace(self=trainer))  # type: ignore[arg-type]
        assert [sample.id for sample in loop.micro or ()] == expected
    queued.micro_begins(SimpleNamespace(self=trainer))  # type: ignore[arg-type]
    assert loop.micro is None
    assert rows(run_path, "select trajectory, fate, step, version, tokens from uses") == [
        (ids[1], "stale", 7, 3, 1),
        (ids[2], "stale", 7, 3, 1),
    ]
    assert no_problems(run_path)


# --- online DPO


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


# --- what the arguments say


@pytest.mark.parametrize(
    ("settings", "expected", "prior"),
    [
        ({"use_vllm": False}, ("ppo", "colocated"), "plain PPO"),
        ({"use_vllm": True, "vllm_mode": "colocate"}, ("ppo", "colocated"), "plain PPO"),
        (
            {
                "use_vllm": True,
                "vllm_mode": "server",
                "vllm_importance_sampling_correction": True,
            },
            ("decoupled", "disaggregated"),
            "decoupled PPO",
        ),
        ({"use_vllm": False, "loss_type": "cispo"}, ("cispo", "colocated"), "plain PPO"),
    ],
)
def test_the_objective_and_the_placement_are_those_of_the_arguments(
    settings: dict[str, Any], expected: tuple[str, str], prior: str
) -> None:
    args = SimpleNamespace(**{"vllm_mode": "server", "loss_type": "dapo"} | settings)
    facts = objective.stated(SimpleNamespace(args=args))
    assert (facts["objective"], facts["placement"]) == expected
    assert prior_for(facts["objective"]).objective == prior
    assert facts["settings"]["--use_vllm"] == settings["use_vllm"]
    assert facts["updates_per_version"] == 1


def test_a_trainer_of_another_kind_states_its_arguments_only() -> None:
    secrets = dict.fromkeys(("hub_token", "judge_api_key", "password"), "secret")
    args = SimpleNamespace(max_steps=3, _private=1, **secrets)
    facts = objective.stated(SimpleNamespace(args=args))
    assert facts == {"settings": {"--max_steps": 3}}
