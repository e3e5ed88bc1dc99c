"""Every hook of the verl adapter is where the sources of each version have it.

The sources are parsed, never imported (`make test-verl` unpacks them).
"""

from __future__ import annotations

import ast
from pathlib import Path

from rltrace.adapters.verl import LABELS
from tests.adapters.sources import VERL

MAY_LACK = {"weights.weights_sent": {"global_steps", "mode"}, "weights.weights_taken": {"mode"}}
ONE_OF = {
    "fates.rows_trained": {"batch", "data"},
    "rollout.judging": {"outputs", "output"},
    "rollout.judged": {"outputs", "output"},
}
"""By reader: arguments that it can do without, and those of which it needs one."""

SUPERSEDED = (
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
)
"""Functions that a version has and that are hooked in other versions only."""


@VERL.each_version
def test_every_hook_of_a_version_has_its_function(version: str) -> None:
    VERL.check(version, SUPERSEDED, MAY_LACK, ONE_OF)


@VERL.each_version
def test_timers_that_the_trainers_start_have_a_label(version: str) -> None:
    """A timer without a label is no stage: it would be recorded as `other`."""
    unknown = set()
    root = Path(VERL.folder, version, "verl")
    for path in [*root.glob("trainer/**/*.py"), *root.glob("experimental/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id="marked_timer" | "simple_timer"),
                    args=[ast.Constant(value=label), *_],
                ) if label not in LABELS:
                    unknown.add(label)
    assert not unknown
