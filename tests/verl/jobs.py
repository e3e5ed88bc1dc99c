"""verl jobs as a user starts them (examples/verl/cpu.sh), traced or not, and what they leave."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.framework_jobs import RAY, ROOT, Ended, Meanwhile, made_by, run_job
from tests.hooks import clusters
from tests.hooks.conftest import WRAP, clean_environment

LAUNCH = ROOT / "examples/verl/cpu.sh"

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
    submitted: bool = False
    """By `ray job submit`, to a cluster that is up and knows nothing of rltrace."""


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
_WAVE = (("VERL_CPU_WAVE", "32"),)
"""All requests of a step in one batch, so that two runs of a job draw the same tokens."""

JOBS: Mapping[str, Job] = {
    "sync": Job(environment=_WAVE),
    "separate": Job(_SEPARATE, (("GPUS", "2"),)),
    "colocate": Job(
        ("trainer.v1.trainer_mode=colocate_async",), (("VERL_CPU_TOKEN_SECONDS", "0.04"),), steps=5
    ),
    "legacy": Job(("trainer.use_v1=False",)),
    "critic": Job(_CRITIC),
    "tools": Job(_TOOLS),
    "dp2": Job(("trainer.n_gpus_per_node=2",), (("GPUS", "2"),), learners=2),
    "submitted": Job(submitted=True),
}
QUICK = ("sync",)


def by_rltrace_sync(job: Job) -> Job:
    """The job with its weights moved by rltrace.sync: that one setting."""
    others = tuple(setting for setting in job.settings if ".checkpoint_engine." not in setting)
    return replace(job, settings=(*others, f"{ROLLOUT}.checkpoint_engine.backend=rltrace"))


class Finished(Ended[Job]):
    """A finished job, and what verl logged."""

    @cached_property
    def metrics(self) -> dict[int, dict[str, Any]]:
        """verl's metrics by step, as its own file logger has them."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return {record["step"]: record["data"] for record in records if record["step"] > 0}


def train(
    job: Job,
    assets: Path,
    folder: Path,
    traced: bool = True,
    code: int | None = 0,
    meanwhile: Meanwhile = lambda process: None,
) -> Finished:
    """Runs a job in a folder, by default traced into `run` there, until it ends with `code`, or
    with any for `None`."""
    (folder / "stamps").mkdir(parents=True)
    settings = [setting.format(assets=assets) for setting in job.settings]
    settings.append(f"trainer.total_training_steps={job.steps}")
    command = [str(LAUNCH), str(assets), *settings]
    wrap = [*WRAP, "--out", str(folder / "run"), "--"] if traced else []
    own = {
        "PYTHON": sys.executable,
        "VERL_CPU_STAMPS": str(folder / "stamps"),
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
        **dict(job.environment),
    }
    if job.submitted:
        ended = _submit(wrap, command, folder, own)
    else:
        with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as ray_dir:
            # A short path: sockets have theirs there.
            environment = clean_environment(RAY_DIR=ray_dir, **RAY, **own)
            ended = run_job([*wrap, *command], folder, environment, meanwhile)
    finished = Finished(job, folder, ended)
    finished.checked(code)
    return finished


def _submit(wrap: list[str], command: list[str], folder: Path, own: dict[str, str]) -> int:
    """The variables that workers need travel with the job; those of the nodes are not ours."""
    plugin = {"PYTHONPATH": str(ROOT / "tests/verl/plugin"), "VERL_PLATFORM": "cpu",
              "VERL_USE_EXTERNAL_MODULES": "verl_cpu", "VERL_LOGGING_LEVEL": "WARN"}  # fmt: skip
    travels = json.dumps({"env_vars": {**plugin, **own}})
    with clusters.started_cluster("--num-cpus=8", "--num-gpus=1", **RAY) as cluster:
        submit = [clusters.RAY, "job", "submit", "--address", cluster["dashboard"]]
        submit += ["--runtime-env-json", travels, "--", *command]
        return run_job([*wrap, *submit], folder, clean_environment(**clusters.ENVIRONMENT))


def make_assets(folder: Path) -> Path:
    """Model, tokenizer and prompts."""
    return made_by(Path(__file__).with_name("make_assets.py"), folder)
