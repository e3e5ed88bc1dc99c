"""Every hook of the TRL adapter is where the sources of each version have it.

`make test-trl` unpacks the wheels and names their folder in `RLTRACE_TRL_SOURCES`.
"""

from __future__ import annotations

import ast
import os
from importlib import import_module
from importlib.util import find_spec

import pytest

from rltrace.adapters.trl import LABELS, TRL, passes
from rltrace.adapters.trl.hooks import HOOKS
from rltrace.testing.inside.adapters import generation, kept, pairs, queued, rollouts
from rltrace.testing.inside.adapters import trl_buffer as buffer
from rltrace.testing.inside.adapters import trl_loop as loop
from rltrace.testing.inside.adapters import trl_verdicts as verdicts
from rltrace.testing.inside.adapters import trl_weights as weights
from rltrace.testing.inside.hooks import Observer, satisfies, split_target, stage_code
from tests.adapters.sources import Sources

VERSIONS = ("0.28.0", "1.0.0", "1.6.0", "1.9.0", "1.16.0")
SOURCES = Sources(os.environ.get("RLTRACE_TRL_SOURCES", ""), TRL, VERSIONS)

needs_sources = pytest.mark.elsewhere(not SOURCES.folder)
needs_trl = pytest.mark.elsewhere(find_spec("trl") is None)
of_every_version = pytest.mark.parametrize("version", VERSIONS)

READS: dict[object, tuple[str, ...]] = {
    buffer.shuffled: ("seq_dict",),
    generation.begins: ("prompts",),
    pairs.begins: ("prompts",),
    pairs.judged: ("completion_ids_list",),
    passes.log_probs: ("model",),
    passes.batch_seen: ("input_ids",),
    queued.collated: ("examples",),
    verdicts.function_ends: ("exc_val",),
    weights.adapter_saved: ("accelerator", "dest_dir"),
    weights.described: ("metadata",),
    weights.tensor_sent: ("weights",),
}
"""Arguments that a reader cannot do without."""

SEEN = {
    "step", "rollout", "env", "reward", "reference", "logprob", "train", "sync", "switch", "wait",
    "data", "checkpoint", "eval", "other",
}  # fmt: skip


@needs_sources
@of_every_version
def test_every_hook_of_a_version_has_its_function(version: str) -> None:
    optional = {hook.target for hook in HOOKS if hook.optional}
    assert set(SOURCES.missing(version)) <= optional


@needs_sources
def test_what_is_optional_is_there_in_the_newest_version() -> None:
    assert SOURCES.missing(VERSIONS[-1]) == []


@needs_sources
@of_every_version
def test_readers_find_the_arguments_that_they_read(version: str) -> None:
    assert not SOURCES.unread(version, READS)


@needs_sources
@of_every_version
def test_a_hook_outside_its_range_has_no_function(version: str) -> None:
    """A range that is too narrow would hide a function that is there."""
    assert not SOURCES.hidden(version)


@needs_sources
@of_every_version
def test_a_version_shows_every_stage(version: str) -> None:
    shared = [hook for hook in HOOKS if not hook.target.startswith("trl.")]
    words = {word for hook in shared for word in hook.stage_word.split(", ")}
    assert (SOURCES.stages(version) | words) - {""} == SEEN


def text(version: str, target: str) -> str:
    """The source of a function, or of a class."""
    found = SOURCES.find(version, *split_target(target))
    assert found is not None, target
    return ast.unparse(found)


@needs_sources
@of_every_version
def test_a_shuffle_is_one_permutation_of_the_default_generator(version: str) -> None:
    shuffle = text(version, "trl.trainer.utils:shuffle_sequence_dict")
    assert shuffle.count("torch.randperm(batch_size)") == shuffle.count("rand") == 1


@needs_sources
@of_every_version
@pytest.mark.parametrize("trainer", ["grpo_trainer:GRPOTrainer", "rloo_trainer:RLOOTrainer"])
def test_a_micro_batch_is_the_part_that_its_number_says(version: str, trainer: str) -> None:
    prepare = text(version, f"trl.trainer.{trainer}._prepare_inputs")
    assert "self._buffered_inputs[self._step % self.args.steps_per_generation]" in prepare
    assert "split_tensor_dict(generation_batch, self.args.steps_per_generation)" in prepare
    split = text(version, "trl.trainer.utils:split_tensor_dict")
    assert "[i * chunk_size:(i + 1) * chunk_size]" in split


@needs_sources
@of_every_version
@pytest.mark.parametrize("trainer", ["grpo_trainer:GRPOTrainer", "rloo_trainer:RLOOTrainer"])
def test_groups_and_rewards_are_in_the_order_of_ranks(version: str, trainer: str) -> None:
    score = text(version, f"trl.trainer.{trainer}._generate_and_score_completions")
    assert "slice(self.accelerator.process_index * len(prompts)" in score
    assert "self._logs['rewards'][name].extend(rewards_per_func[:, i].tolist())" in score
    whole = text(version, f"trl.trainer.{trainer}")
    assert "deque(maxlen=args.generation_batch_size)" in whole
    for name in ("_last_loaded_step", "_step", "num_generations", "reward_func_names"):
        assert f"self.{name}" in whole


@needs_sources
@of_every_version
@pytest.mark.parametrize("trainer", ["grpo_trainer:GRPOTrainer", "rloo_trainer:RLOOTrainer"])
def test_what_does_not_apply_adds_nothing_to_a_weighted_sum(version: str, trainer: str) -> None:
    score = text(version, f"trl.trainer.{trainer}._generate_and_score_completions")
    weighted = "(rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)"
    assert f"rewards = {weighted}" in score
    if "multi_objective_aggregation" in score:
        assert "if self.multi_objective_aggregation == 'sum_then_normalize'" in score


@needs_sources
@of_every_version
@pytest.mark.parametrize("trainer", ["grpo_trainer:GRPOTrainer", "rloo_trainer:RLOOTrainer"])
def test_what_ends_a_text_is_where_it_is_looked_for(version: str, trainer: str) -> None:
    generate = text(version, f"trl.trainer.{trainer}._generate")
    ends = {
        "<1.1": "[self.eos_token_id, self.pad_token_id]",
        ">=1.1,<1.10": "[self._tokenizer.eos_token_id, self._tokenizer.pad_token_id]",
        ">=1.10": "[*self.eos_token_ids, self._tokenizer.pad_token_id]",
    }
    [expected] = [code for versions, code in ends.items() if satisfies(version, versions)]
    assert expected in generate


@needs_sources
@of_every_version
def test_a_timed_block_is_named_after_its_trainer(version: str) -> None:
    named = text(version, "trl.extras.profiling:profiling_context")
    assert "f'{trainer.__class__.__name__}.{name}'" in named


@needs_sources
@pytest.mark.parametrize("version", [v for v in VERSIONS if satisfies(v, ">=1.0")])
def test_a_sample_s_tokens_and_messages_stay_the_same_objects(version: str) -> None:
    """By which it is known on its way through the queue."""
    package = "trl.experimental.async_grpo"
    items = text(version, f"{package}.async_grpo_trainer:RolloutQueueDataset.__iter__")
    assert "'input_ids': sample.input_ids" in items
    assert "self.queue.get(" in items
    worker = f"{package}.async_rollout_worker"
    owner = "AsyncRolloutWorker" if satisfies(version, "<1.6") else "_AsyncRolloutLoop"
    loop_ = text(version, f"{worker}:{owner}._generate_loop")
    assert "group.completions.append(completion)" in loop_
    assert "completion=completion" in text(version, f"{worker}:{owner}._score_group")
    assert "f'rewards/{name}'" in text(version, f"{worker}:{owner}._score_group")


@needs_trl
def test_what_is_hooked_beside_trl_is_there() -> None:
    others = [hook for hook in HOOKS if not hook.target.startswith("trl.") and not hook.optional]
    assert others
    for hook in others:
        module, qualname = split_target(hook.target)
        found = import_module(module)
        for name in qualname.split("."):
            found = getattr(found, name)
        assert callable(found)


def test_labels_are_words_of_the_vocabulary() -> None:
    assert all(stage_code(stage) >= 0 for stage in LABELS.values())


def test_stages_are_words_of_the_vocabulary() -> None:
    for hook in HOOKS:
        Observer(hook)
        assert all(stage_code(word) >= 0 for word in hook.stages)


def test_no_function_is_hooked_twice() -> None:
    targets = [hook.target for hook in HOOKS]
    assert len(targets) == len(set(targets))


def test_readers_are_those_of_the_adapter() -> None:
    modules = (
        buffer, generation, kept, loop, pairs, passes, queued, rollouts, verdicts, weights,
    )  # fmt: skip
    assert set(READS) <= {
        value for module in modules for value in vars(module).values() if callable(value)
    }
