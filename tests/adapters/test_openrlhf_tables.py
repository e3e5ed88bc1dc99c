"""Every hook of the OpenRLHF adapter is where the sources of each version have it.

`make test-openrlhf` unpacks the wheels and names their folder in `RLTRACE_OPENRLHF_SOURCES`.
"""

from __future__ import annotations

import ast
import os
from importlib import import_module
from pathlib import Path

import pytest

from rltrace.adapters.openrlhf import LABELS, ROLES, OpenRLHF
from rltrace.adapters.openrlhf.hooks import HOOKS
from rltrace.testing.inside.adapters import agents, engine, training
from rltrace.testing.inside.adapters import openrlhf_controller as controller
from rltrace.testing.inside.adapters import openrlhf_fates as fates
from rltrace.testing.inside.adapters import openrlhf_rollout as rollout
from rltrace.testing.inside.adapters import openrlhf_verdicts as verdicts
from rltrace.testing.inside.hooks import satisfies, split_target, stage_code
from tests.adapters.sources import Sources

VERSIONS = ("0.9.1", "0.9.6", "0.9.9", "0.10.1", "0.10.2", "0.11.2")
SOURCES = Sources(os.environ.get("RLTRACE_OPENRLHF_SOURCES", ""), OpenRLHF, VERSIONS)

needs_sources = pytest.mark.elsewhere(not SOURCES.folder)
of_every_version = pytest.mark.parametrize("version", VERSIONS)

READS: dict[object, tuple[str, ...]] = {
    agents.environment_known: ("agent_instance_cls",),
    agents.group_begins: ("prompt",),
    fates.arrived: ("response",),
    fates.generating: ("dynamic_filtering",),
    controller.logged: ("logs_dict",),
    controller.saving: ("global_step",),
    controller.train_begins: ("rollout_samples", "global_step"),
    engine.tensor_comes: ("name", "dtype", "shape"),
    engine.tensor_loaded: ("empty_cache",),
    engine.worker_loaded: ("empty_cache",),
    rollout.requested: ("prompt_token_ids",),
    training.batch_given: ("method_name", "all_data", "start_idx", "end_idx"),
    training.placed: ("rank",),
    verdicts.judging: ("queries_list",),
}
"""Arguments that a reader cannot do without."""

SEEN = {
    "step", "rollout", "env", "reward", "reference", "logprob", "value", "train", "sync", "switch",
    "wait", "checkpoint", "eval", "other",
}  # fmt: skip

_UTILS = "openrlhf.trainer.ppo_utils"

RESPONSE_KEYS = {
    "observation_tokens", "action_ranges", "reward", "scores", "rollout_log_probs", "truncated",
    "extra_logs", "prompt", "label", "images", "mm_train_inputs",
}  # fmt: skip


@needs_sources
@of_every_version
def test_every_hook_of_a_version_has_its_function(version: str) -> None:
    assert not SOURCES.missing(version)


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
    assert SOURCES.stages(version) - {""} == SEEN


@needs_sources
@of_every_version
def test_of_a_response_only_known_keys_are_read(version: str) -> None:
    """A further one, which carries the trajectory's id, is nobody's business."""
    [hook] = [hook for hook in SOURCES.hooks(version) if hook.after is fates.arrived]
    function = SOURCES.place(version, hook)
    assert function is not None
    uses = [
        node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == "response"
    ]
    keys = []
    for node in ast.walk(function):
        match node:
            case ast.Subscript(value=ast.Name(id="response"), slice=ast.Constant(value=key)):
                keys.append(key)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="response"), attr="get"),
                args=[ast.Constant(value=key), *_],
            ):
                keys.append(key)
    assert len(uses) == len(keys)
    assert set(keys) <= RESPONSE_KEYS


@needs_sources
@of_every_version
def test_a_batch_is_made_of_declared_fields(version: str) -> None:
    """An attribute that an experience carries besides them is in no batch."""
    module = next(
        name
        for name in ("experience", "experience_maker")
        if SOURCES.function(version, f"{_UTILS}.{name}:Experience.concat_experiences")
    )
    function = SOURCES.function(version, f"{_UTILS}.{module}:Experience.concat_experiences")
    assert function is not None
    assert "fields(Experience)" in ast.unparse(function)
    assert "__dict__" not in ast.unparse(function)


LOOKED_AT = {
    "ppo_trainer": {"args", "save_steps", "strategy"},
    "ppo_utils.replay_buffer": {"items", "sample_batch_size", "dynamic_batch"},
    "ray.ppo_actor": {
        *("actor", "model", "module", "replay_buffer", "strategy"),
        *("use_cuda_ipc", "_model_update_group", "rollout_log_probs"),
    },
    "ray.ppo_critic": {"replay_buffer"},
    "ray.vllm_engine": {"executor"},
    "ppo_utils.experience_maker": {"index", "rewards", "action_log_probs"},
}
"""Attributes of OpenRLHF's own objects that readers look at, by the module that has them."""

ARGUMENTS = {
    "dynamic_filtering_range": "dynamic_filtering_reward_range",
    "colocate_all": "colocate_all_models",
    "sync_backend": "vllm_sync_backend",
}
"""Names of flags since 0.10.2, in groups, and before."""


@needs_sources
@of_every_version
def test_attributes_that_readers_look_at_are_there(version: str) -> None:
    for name, wanted in LOOKED_AT.items():
        tree = SOURCES.module(version, f"openrlhf.trainer.{name}")
        assert tree is not None
        found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert wanted <= found | names, name
    flags = Path(SOURCES.folder, version, "openrlhf/cli/train_ppo_ray.py").read_text()
    grouped = satisfies(version, ">=0.10.2")
    for new, old in ARGUMENTS.items():
        assert (f".{new}" if grouped else f'"--{old}"') in flags


@needs_sources
@of_every_version
def test_the_last_tensor_of_an_update_says_so(version: str) -> None:
    send = "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer.broadcast_to_vllm"
    function = SOURCES.function(version, send)
    assert function is not None
    assert ast.unparse(function).count("empty_cache=count == num_params") == 2


@needs_sources
@of_every_version
def test_timings_that_are_logged_have_a_label(version: str) -> None:
    logged = {
        node.value
        for name in ("ppo_trainer", "ppo_trainer_async")
        for node in ast.walk(SOURCES.module(version, f"openrlhf.trainer.{name}") or ast.Module([]))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("timing/")
        and node.value != "timing/"
    }
    assert logged <= LABELS.keys()
    assert (logged == LABELS.keys()) == (version != "0.9.1")


@needs_sources
def test_roles_name_classes_of_some_version() -> None:
    for target in ROLES:
        module, _, cls = target.partition(":")
        assert cls in SOURCES.classes(module), target


def test_what_is_hooked_beside_openrlhf_is_there() -> None:
    others = [hook.target for hook in HOOKS if not hook.target.startswith("openrlhf.")]
    assert others
    for target in others:
        module, qualname = split_target(target)
        owner, _, method = qualname.partition(".")
        assert callable(getattr(getattr(import_module(module), owner), method))


def test_labels_are_words_of_the_vocabulary() -> None:
    assert all(stage_code(stage) >= 0 for stage in LABELS.values())


def test_no_function_is_hooked_twice() -> None:
    targets = [hook.target for hook in HOOKS]
    assert len(targets) == len(set(targets))
