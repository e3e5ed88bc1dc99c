"""Every hook of the OpenRLHF adapter is where the sources of each version have it.

The sources are parsed, never imported (`make test-openrlhf` unpacks them).
"""

from __future__ import annotations

import ast
from pathlib import Path

from rltrace.adapters.openrlhf.hooks import HOOKS
from rltrace.testing.inside.adapters import table_of
from rltrace.testing.inside.trace import satisfies
from tests.adapters.sources import OPENRLHF

MAY_LACK = {"controller.fit_begins": {"global_step"}, "engine.tensor_loaded": {"ipc_handles"}}
"""Arguments that a reader can do without."""


RESPONSE_KEYS = {
    "observation_tokens", "action_ranges", "reward", "scores", "rollout_log_probs", "truncated",
    "extra_logs", "prompt", "label", "images", "mm_train_inputs",
}  # fmt: skip


@OPENRLHF.each_version
def test_every_hook_of_a_version_has_its_function(version: str) -> None:
    OPENRLHF.check(version, may_lack=MAY_LACK)


@OPENRLHF.each_version
def test_of_a_response_only_known_keys_are_read(version: str) -> None:
    """A further one, which carries the trajectory's id, is nobody's business."""
    [hook] = [h for h in HOOKS if h.target.endswith("._process_response_into_experience")]
    function = OPENRLHF.place(version, hook)
    assert function is not None
    keys, uses = [], 0
    for node in ast.walk(function):
        match node:
            case ast.Name(id="response"):
                uses += 1
            case ast.Subscript(value=ast.Name(id="response"), slice=ast.Constant(value=key)):
                keys.append(key)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="response"), attr="get"),
                args=[ast.Constant(value=key), *_],
            ):
                keys.append(key)
    assert uses == len(keys)
    assert set(keys) <= RESPONSE_KEYS


@OPENRLHF.each_version
def test_a_batch_is_made_of_declared_fields(version: str) -> None:
    """An attribute that an experience carries besides them is in no batch."""
    targets = [
        f"openrlhf.trainer.ppo_utils.{module}:Experience.concat_experiences"
        for module in ("experience", "experience_maker")
    ]
    [text] = [OPENRLHF.text(version, t) for t in targets if OPENRLHF.trees[version].function(t)][:1]
    assert "fields(Experience)" in text
    assert "__dict__" not in text


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


def nodes(version: str, name: str) -> list[ast.AST]:
    """All of a module of the trainer."""
    return list(ast.walk(OPENRLHF.trees[version].module(f"openrlhf.trainer.{name}") or ast.Pass()))


@OPENRLHF.each_version
def test_attributes_that_readers_look_at_are_there(version: str) -> None:
    for name, wanted in LOOKED_AT.items():
        found = {node.attr for node in nodes(version, name) if isinstance(node, ast.Attribute)}
        found |= {node.id for node in nodes(version, name) if isinstance(node, ast.Name)}
        assert wanted <= found, name
    flags = Path(OPENRLHF.folder, version, "openrlhf/cli/train_ppo_ray.py").read_text()
    grouped = satisfies(version, ">=0.10.2")
    for new, old in ARGUMENTS.items():
        assert (f".{new}" if grouped else f'"--{old}"') in flags


@OPENRLHF.each_version
def test_the_last_tensor_of_an_update_says_so(version: str) -> None:
    send = "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer.broadcast_to_vllm"
    assert OPENRLHF.text(version, send).count("empty_cache=count == num_params") == 2


@OPENRLHF.each_version
def test_timings_that_are_logged_are_imported(version: str) -> None:
    logged = {
        node.value
        for name in ("ppo_trainer", "ppo_trainer_async")
        for node in nodes(version, name)
        if isinstance(node, ast.Constant) and str(node.value).startswith("timing/")
    } - {"timing/"}
    table = table_of("openrlhf")
    imported = {*table["step"], *table["inside"]}
    assert logged <= imported
    assert (logged == imported) == (version != "0.9.1")


def test_what_is_hooked_beside_openrlhf_is_there() -> None:
    OPENRLHF.check_what_is_beside()
