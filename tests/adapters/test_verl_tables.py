"""Every hook of the verl adapter is where the sources of each version have it.

The sources are parsed, never imported. `make test-verl` unpacks the wheels into one folder a
version and names that folder in `RLTRACE_VERL_SOURCES`.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from rltrace.adapters.verl import LABELS, ROLES, Verl, learner, rollout
from rltrace.hooks.hook import Hook, split_target, stage_code
from rltrace.hooks.versions import satisfies

VERSIONS = ("0.6.1", "0.7.1", "0.8.0", "0.9.1")
SOURCES = os.environ.get("RLTRACE_VERL_SOURCES", "")

needs_sources = pytest.mark.skipif(
    not SOURCES, reason="RLTRACE_VERL_SOURCES names no folder with verl's sources: make test-verl"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef

READS = {
    learner.timer_stage: ("name",),
    learner.timer_named: ("name",),
    learner.sampled: ("partition_id", "global_steps"),
    learner.evicted: ("partition_id", "global_steps", "eviction_reasons"),
    learner.rows_arrive: ("prompts",),
    learner.rows_reordered: ("indices",),
    learner.model_built: ("model",),
    learner.batch_given: ("data",),
    learner.weights_updated: ("global_steps",),
    rollout.begins: ("trajectory",),
}
"""Arguments that a reader cannot do without."""

EITHER = {
    learner.rows_trained: {"batch", "data"},
    rollout.judging: {"outputs", "output"},
    rollout.judged: {"outputs", "output"},
}

SEEN = {
    "rollout", "env", "reward", "reference", "logprob", "value", "train", "sync", "switch",
    "checkpoint", "eval",
}  # fmt: skip
"""Stages that the adapter shows in every version; `data` only where V1 has a function for it."""


@lru_cache
def module(version: str, name: str) -> ast.Module | None:
    """A module's syntax tree; None where the version does not have it."""
    path = Path(SOURCES, version, *name.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.exists():
            return ast.parse(file.read_text())
    return None


def definitions(tree: ast.Module | ast.ClassDef) -> Iterator[ast.stmt]:
    """What is defined at the top of a module or class, below conditions too."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop(0)
        yield node
        if isinstance(node, ast.If | ast.Try):
            pending += node.body + node.orelse


def find(version: str, module_name: str, qualname: str) -> Function | ast.ClassDef | None:
    """The definition of a target, inherited ones included."""
    tree = module(version, module_name)
    if tree is None:
        return None
    owner, _, leaf = qualname.rpartition(".")
    if not owner:
        return defined(version, module_name, tree, leaf)
    cls = find(version, module_name, owner)
    if not isinstance(cls, ast.ClassDef):
        return None
    for node in definitions(cls):
        if isinstance(node, Function) and node.name == leaf:
            return node
    bases = [base.id for base in cls.bases if isinstance(base, ast.Name)]
    found = (find(version, module_name, f"{base}.{leaf}") for base in bases)
    return next((node for node in found if node is not None), None)


def defined(
    version: str, module_name: str, tree: ast.Module, name: str
) -> Function | ast.ClassDef | None:
    """A name of a module, followed to where it is imported from."""
    for node in definitions(tree):
        if isinstance(node, Function | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("verl"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return find(version, str(node.module), alias.name)
    return None


def parameters(function: Function) -> set[str]:
    """The names of a function's parameters."""
    arguments = function.args
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def hooks_of(version: str) -> list[Hook]:
    """The hooks that a version is said to have."""
    return [hook for hook in Verl.hooks if satisfies(version, hook.versions)]


@needs_sources
@pytest.mark.parametrize("version", VERSIONS)
def test_every_hook_of_a_version_has_its_function(version: str) -> None:
    missing = [
        target
        for hook in hooks_of(version)
        for target in (hook.target, *hook.alternates)
        if not isinstance(find(version, *split_target(target)), Function)
    ]
    assert not missing


@needs_sources
@pytest.mark.parametrize("version", VERSIONS)
def test_readers_find_the_arguments_that_they_read(version: str) -> None:
    wrong = []
    for hook in hooks_of(version):
        function = find(version, *split_target(hook.target))
        assert isinstance(function, Function)
        for reader in (hook.before, hook.after, hook.stage):
            names = parameters(function)
            absent = set(READS.get(reader, ())) - names  # type: ignore[call-overload]
            one_of = EITHER.get(reader)  # type: ignore[call-overload]
            if absent or (one_of and not one_of & names):
                wrong.append((hook.target, absent or one_of))
    assert not wrong


@needs_sources
@pytest.mark.parametrize("version", VERSIONS)
def test_a_hook_outside_its_range_has_no_function_or_another_one_in_its_place(version: str) -> None:
    """A range that is too narrow would hide a function that is there."""
    seen = {hook.target for hook in hooks_of(version)}
    hidden = [
        hook.target
        for hook in Verl.hooks
        if hook.target not in seen
        and isinstance(find(version, *split_target(hook.target)), Function)
    ]
    assert set(hidden) <= SUPERSEDED


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
}
"""Functions that a version has and that are hooked in other versions only."""


@needs_sources
@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_shows_every_stage_that_it_has(version: str) -> None:
    words = {word for hook in hooks_of(version) for word in hook.stage_word.split(", ")}
    assert "by call" not in words
    assert words >= SEEN


@needs_sources
@pytest.mark.parametrize("version", VERSIONS)
def test_timers_that_the_trainers_start_have_a_label(version: str) -> None:
    """A timer without a label is no stage: it would be recorded as `other`."""
    unknown = set()
    root = Path(SOURCES, version, "verl")
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
        trees = (module(version, name) for version in VERSIONS)
        nodes = (node for tree in trees if tree is not None for node in ast.walk(tree))
        assert any(isinstance(node, ast.ClassDef) and node.name == cls for node in nodes), target


def test_labels_are_words_of_the_vocabulary() -> None:
    assert all(stage_code(stage) >= 0 for stage in LABELS.values())


def test_no_function_is_hooked_twice_for_the_same_purpose() -> None:
    keys = [(hook.target, hook.stream is None) for hook in Verl.hooks]
    assert len(keys) == len(set(keys))
