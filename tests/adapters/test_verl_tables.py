"""Every hook of the verl adapter is where the sources of each version have it.

The sources are parsed, never imported. `make test-verl` unpacks the wheels into one folder a
version and names that folder in `RLTRACE_VERL_SOURCES`.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from rltrace.adapters.verl import LABELS, ROLES, Verl, forerunner
from rltrace.testing.inside.adapters import learner, objective
from rltrace.testing.inside.adapters import verl_controller as controller
from rltrace.testing.inside.adapters import verl_fates as fates
from rltrace.testing.inside.adapters import verl_rollout as rollout
from rltrace.testing.inside.adapters import verl_weights as weights
from rltrace.testing.inside.hooks import stage_code
from tests.adapters.sources import Sources, parameters

VERSIONS = ("0.6.1", "0.7.1", "0.8.0", "0.9.1")
SOURCES = Sources(os.environ.get("RLTRACE_VERL_SOURCES", ""), Verl, VERSIONS)

needs_sources = pytest.mark.elsewhere(not SOURCES.folder)

READS: dict[object, tuple[str, ...]] = {
    controller.timer_stage: ("name",),
    forerunner.timer_named: ("name",),
    forerunner.batch_given_out: ("key", "val"),
    forerunner.batch_padded: ("batch",),
    fates.sampled: ("partition_id", "global_steps"),
    fates.evicted: ("partition_id", "global_steps", "eviction_reasons"),
    fates.rows_arrive: ("prompts",),
    fates.rows_reordered: ("indices",),
    learner.model_built: ("model",),
    objective.tracked: ("config",),
    learner.batch_given: ("data",),
    weights.weights_updated: ("global_steps",),
    rollout.begins: ("trajectory",),
}
"""Arguments that a reader cannot do without."""

EITHER: dict[object, set[str]] = {
    fates.rows_trained: {"batch", "data"},
    rollout.judging: {"outputs", "output"},
    rollout.judged: {"outputs", "output"},
}

SEEN = {
    "rollout", "env", "reward", "reference", "logprob", "value", "train", "sync", "switch",
    "checkpoint", "eval",
}  # fmt: skip
"""Stages that the adapter shows in every version; `data` only where V1 has a function for it."""


@needs_sources
@pytest.mark.parametrize("version", VERSIONS)
def test_every_hook_of_a_version_has_its_function(version: str) -> None:
    assert not SOURCES.missing(version)


@needs_sources
@pytest.mark.parametrize("version", VERSIONS)
def test_readers_find_the_arguments_that_they_read(version: str) -> None:
    assert not SOURCES.unread(version, READS)
    for hook in SOURCES.hooks(version):
        function = SOURCES.function(version, hook.target)
        for reader in {hook.before, hook.after} & EITHER.keys():
            assert function is not None
            assert EITHER[reader] & parameters(function)


@needs_sources
@pytest.mark.parametrize("version", VERSIONS)
def test_a_hook_outside_its_range_has_no_function_or_another_one_in_its_place(version: str) -> None:
    """A range that is too narrow would hide a function that is there."""
    assert SOURCES.hidden(version) <= SUPERSEDED


SUPERSEDED = {
    # Since 0.7 `_compute_score` and `_update_actor` say the same, with more detail.
    "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop.run",
    "verl.experimental.agent_loop.tool_agent_loop:ToolAgentLoop.run",
    "verl.trainer.ppo.ray_trainer:compute_advantage",
    # In 0.6.1 they only inherit, from classes that are hooked.
    "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._run_agent_loop",
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.wake_up",
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.sleep",
    # Since 0.8 the bridges hand out Megatron's weights.
    "verl.utils.megatron_utils:per_tensor_generator",
    # In 0.6.1 the engines exist, and only the trainer of supervised fine-tuning uses them.
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.get_per_tensor_param",
    "verl.workers.engine.megatron.transformer_impl:MegatronEngine.get_per_tensor_param",
    # 0.8's main_ppo_sync has its trainer where no hook reaches; the others' own functions say it.
    "verl.trainer.ppo.padding_utils:upsample_batch_to_divisible_size",
    "verl.utils.tracking:Tracking.__init__",
    "verl.utils.tensordict_utils:assign_non_tensor_data",
}
"""Functions that a version has and that are hooked in other versions only."""


@needs_sources
@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_shows_every_stage_that_it_has(version: str) -> None:
    words = SOURCES.stages(version)
    assert "by call" not in words
    assert words >= SEEN


@needs_sources
@pytest.mark.parametrize("version", VERSIONS)
def test_timers_that_the_trainers_start_have_a_label(version: str) -> None:
    """A timer without a label is no stage: it would be recorded as `other`."""
    unknown = set()
    root = Path(SOURCES.folder, version, "verl")
    for path in [*root.glob("trainer/**/*.py"), *root.glob("experimental/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in ("marked_timer", "simple_timer") and node.args:
                label = node.args[0]
                if isinstance(label, ast.Constant) and label.value not in LABELS:
                    unknown.add(label.value)
    assert not unknown


@needs_sources
def test_roles_name_classes_of_some_version() -> None:
    for target in ROLES:
        name, _, cls = target.partition(":")
        assert cls in SOURCES.classes(name), target


def test_labels_are_words_of_the_vocabulary() -> None:
    assert all(stage_code(stage) >= 0 for stage in LABELS.values())


def test_no_function_is_hooked_twice_for_the_same_purpose() -> None:
    keys = [(hook.target, hook.stream is None) for hook in Verl.hooks]
    assert len(keys) == len(set(keys))
