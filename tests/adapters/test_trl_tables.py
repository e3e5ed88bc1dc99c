"""Every hook of the TRL adapter is where the sources of each version have it.

The sources are parsed, never imported (`make test-trl` unpacks them).
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from rltrace.testing.inside.trace import satisfies
from tests.adapters.sources import TRL
from tests.adapters.trl_shapes import ASYNC

MAY_LACK = {"rollouts.begins": {"prompt", "row"}}
"""Arguments that a reader can do without."""


text = TRL.text
each_trainer = pytest.mark.parametrize(
    "trainer", ["grpo_trainer:GRPOTrainer", "rloo_trainer:RLOOTrainer"]
)


@TRL.each_version
def test_every_hook_of_a_version_has_its_function(version: str) -> None:
    TRL.check(version, may_lack=MAY_LACK)


@TRL.needed
def test_what_is_optional_is_there_in_the_newest_version() -> None:
    newest = TRL.versions[-1]
    assert all(TRL.place(newest, hook) for hook in TRL.hooks(newest))


@TRL.each_version
def test_a_shuffle_is_one_permutation_of_the_default_generator(version: str) -> None:
    shuffle = text(version, "trl.trainer.utils:shuffle_sequence_dict")
    assert shuffle.count("torch.randperm(batch_size)") == shuffle.count("rand") == 1


@TRL.each_version
@each_trainer
def test_a_micro_batch_is_the_part_that_its_number_says(version: str, trainer: str) -> None:
    prepare = text(version, f"trl.trainer.{trainer}._prepare_inputs")
    assert "self._buffered_inputs[self._step % self.args.steps_per_generation]" in prepare
    assert "split_tensor_dict(generation_batch, self.args.steps_per_generation)" in prepare
    split = text(version, "trl.trainer.utils:split_tensor_dict")
    assert "[i * chunk_size:(i + 1) * chunk_size]" in split


@TRL.each_version
@each_trainer
def test_groups_and_rewards_are_in_the_order_of_ranks(version: str, trainer: str) -> None:
    score = text(version, f"trl.trainer.{trainer}._generate_and_score_completions")
    assert "slice(self.accelerator.process_index * len(prompts)" in score
    assert "self._logs['rewards'][name].extend(rewards_per_func[:, i].tolist())" in score
    whole = text(version, f"trl.trainer.{trainer}")
    assert "deque(maxlen=args.generation_batch_size)" in whole
    for name in ("_last_loaded_step", "_step", "num_generations", "reward_func_names"):
        assert f"self.{name}" in whole
    # What does not apply adds nothing to a weighted sum.
    weighted = "(rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)"
    assert f"rewards = {weighted}" in score
    if "multi_objective_aggregation" in score:
        assert "if self.multi_objective_aggregation == 'sum_then_normalize'" in score


@TRL.each_version
@each_trainer
def test_what_ends_a_text_is_where_it_is_looked_for(version: str, trainer: str) -> None:
    generate = text(version, f"trl.trainer.{trainer}._generate")
    ends = {
        "<1.1": "[self.eos_token_id, self.pad_token_id]",
        ">=1.1,<1.10": "[self._tokenizer.eos_token_id, self._tokenizer.pad_token_id]",
        ">=1.10": "[*self.eos_token_ids, self._tokenizer.pad_token_id]",
    }
    [expected] = [code for versions, code in ends.items() if satisfies(version, versions)]
    assert expected in generate


@TRL.each_version
def test_a_timed_block_is_named_after_its_trainer(version: str) -> None:
    named = text(version, "trl.extras.profiling:profiling_context")
    assert "f'{trainer.__class__.__name__}.{name}'" in named


@TRL.needed
@pytest.mark.parametrize("version", [v for v in TRL.versions if satisfies(v, ">=1.0")])
def test_a_sample_s_tokens_and_messages_stay_the_same_objects(version: str) -> None:
    """By which it is known on its way through the queue."""
    items = text(version, f"{ASYNC}.async_grpo_trainer:RolloutQueueDataset.__iter__")
    assert "'input_ids': sample.input_ids" in items
    assert "self.queue.get(" in items
    owner = "AsyncRolloutWorker" if satisfies(version, "<1.6") else "_AsyncRolloutLoop"
    worker = f"{ASYNC}.async_rollout_worker:{owner}"
    assert "group.completions.append(completion)" in text(version, f"{worker}._generate_loop")
    for said in ("completion=completion", "f'rewards/{name}'"):
        assert said in text(version, f"{worker}._score_group")


@pytest.mark.elsewhere(find_spec("trl") is None)
def test_what_is_hooked_beside_trl_is_there() -> None:
    TRL.check_what_is_beside()
