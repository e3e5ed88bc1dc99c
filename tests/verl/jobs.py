"""verl jobs as a user starts them (examples/verl/cpu.sh), traced or not, and what they leave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tests.adapters.sources import VERL
from tests.framework_jobs import ROOT, Ended, assets_of

LAUNCH = ROOT / "examples/verl/cpu.sh"
make_assets = partial(assets_of, "verl")

ROLLOUT = "actor_rollout_ref.rollout"
SYNC_BYTES = 322_304
"""One policy on the wire: 309,760 bytes of parameters, and the tied head a second time."""


@dataclass(frozen=True)
class Job:
    """A way to run verl: its settings, and the environment of `cpu.sh`."""

    settings: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    steps: int = 3
    learners: int = 1
    version: str = ""
    """Of verl (empty: the one that is installed)."""

    @property
    def sync_bytes(self) -> int:
        """Of one policy on the wire; 0.8 sends it in bf16."""
        return SYNC_BYTES // 2 if self.version else SYNC_BYTES


_SEPARATE = (
    "trainer.v1.trainer_mode=separate_async",
    "trainer.v1.separate_async.parameter_sync_step=2",
    "trainer.v1.separate_async.num_warmup_batches=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.hybrid_engine=False",
    f"{ROLLOUT}.nnodes=1",
    f"{ROLLOUT}.n_gpus_per_node=1",
    f"{ROLLOUT}.checkpoint_engine.backend=cpu_gloo",
    f"{ROLLOUT}.checkpoint_engine.custom_backend_module=verl_cpu.checkpoint",
)
_CRITIC = (
    "algorithm.adv_estimator=gae",
    "critic.model.path={assets}/model",
    "critic.ppo_micro_batch_size_per_gpu=16",
    "critic.strategy=fsdp2",
    "critic.fsdp.strategy=fsdp2",
    "critic.fsdp.use_torch_compile=False",
    "critic.model.use_remove_padding=False",
    "critic.model.enable_gradient_checkpointing=False",
    "+critic.model.override_config.attn_implementation=sdpa",
    "trainer.test_freq=2",
    "trainer.val_before_train=True",
)
_TOOLS = (
    f"{ROLLOUT}.agent.default_agent_loop=tool_agent",
    f"{ROLLOUT}.multi_turn.enable=True",
    f"{ROLLOUT}.multi_turn.max_assistant_turns=2",
    f"{ROLLOUT}.multi_turn.format=even",
    f"{ROLLOUT}.multi_turn.function_tool_path={ROOT}/tests/verl/plugin/verl_cpu/tools.py",
)
_SEPARATE_JOB = Job(_SEPARATE, (("GPUS", "2"),))


def by_rltrace_sync(job: Job) -> Job:
    """The job with its weights moved by rltrace.sync: that one setting."""
    others = tuple(setting for setting in job.settings if ".checkpoint_engine." not in setting)
    return replace(job, settings=(*others, f"{ROLLOUT}.checkpoint_engine.backend=rltrace"))


JOBS: Mapping[str, Job] = {
    "sync": Job(),
    "separate": _SEPARATE_JOB,
    "rltrace": by_rltrace_sync(_SEPARATE_JOB),
    "colocate": Job(
        ("trainer.v1.trainer_mode=colocate_async",), (("VERL_CPU_TOKEN_SECONDS", "0.04"),), steps=5
    ),
    "legacy": Job(("trainer.use_v1=False",)),
    "critic": Job(_CRITIC),
    "tools": Job(_TOOLS),
    "0.8": Job(version="0.8.0"),
    "dp2": Job(("trainer.n_gpus_per_node=2",), (("GPUS", "2"),), learners=2),
}
QUICK = ("sync", "rltrace")


class Finished(Ended[Job]):
    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """What verl's own file logger has written."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @cached_property
    def metrics(self) -> dict[int, dict[str, Any]]:
        """Its metrics by step."""
        return {line["step"]: line["data"] for line in self.lines if line["step"] > 0}


def train(job: Job, assets: Path, folder: Path, traced: bool = True, **how: Any) -> Finished:
    """Runs a job in a folder, by default traced; `how` as `Ended.of`."""
    settings = [setting.format(assets=assets) for setting in job.settings]
    command = [str(LAUNCH), str(assets), *settings, f"trainer.total_training_steps={job.steps}"]
    environment = {"VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"), **dict(job.environment)}
    environment |= VERL.instead(job.version)
    return Finished.of(job, folder, command, traced, **how, **environment)
