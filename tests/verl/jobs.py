"""verl jobs as a user starts them (examples/verl/cpu.sh), traced or not, and what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import rltrace
from rltrace.trace.run import Run
from tests.hooks.clusters import ENVIRONMENT, RAY, started_cluster
from tests.hooks.conftest import WRAP, clean_environment

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "examples/verl/cpu.sh"
LIMIT_S = 900  # of one job, which takes one to two minutes on two idle cores

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


@dataclass(frozen=True)
class Finished:
    """A finished job: what verl logged, what the plug-in stamped and, if traced, the run."""

    job: Job
    folder: Path

    @cached_property
    def run(self) -> Run:
        """The trace."""
        return rltrace.open_run(self.folder / "run")

    @cached_property
    def metrics(self) -> dict[int, dict[str, Any]]:
        """verl's metrics by step, as its own file logger has them."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return {record["step"]: record["data"] for record in records if record["step"] > 0}

    def stamps(self, what: str) -> list[dict[str, Any]]:
        """What the plug-in's own code wrote down, in order of its start."""
        files = (self.folder / "stamps").glob(f"{what}-*.jsonl")
        found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sorted(found, key=lambda line: line["start_ns"])

    def rows(self, query: str) -> list[Any]:
        """The rows of a query on the trace; bare values where it has one column."""
        found = self.run.sql(query).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]


def train(
    job: Job,
    assets: Path,
    folder: Path,
    traced: bool = True,
    code: int | None = 0,
    hangs: Callable[[], bool] = lambda: False,
) -> Finished:
    """Runs a job in a folder, by default traced into `run` there, until it ends with `code`, or
    with any for `None`. One that hangs is sent SIGTERM."""
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
            environment = clean_environment(RAY_DIR=ray_dir, **_RAY, **own)
            ended = _run([*wrap, *command], folder, environment, hangs)
    log = (folder / "log").read_text(errors="replace")
    assert code in (ended, None), log[-8000:]
    return Finished(job, folder)


_RAY = {
    "RAY_memory_monitor_refresh_ms": "0",  # it kills for the memory of other programs
    "RAY_raylet_start_wait_time_s": "180",
}


def _submit(wrap: list[str], command: list[str], folder: Path, own: dict[str, str]) -> int:
    """The variables that workers need travel with the job; those of the nodes are not ours."""
    plugin = {"PYTHONPATH": str(ROOT / "tests/verl/plugin"), "VERL_PLATFORM": "cpu",
              "VERL_USE_EXTERNAL_MODULES": "verl_cpu", "VERL_LOGGING_LEVEL": "WARN"}  # fmt: skip
    travels = json.dumps({"env_vars": {**plugin, **own}})
    with started_cluster("--num-cpus=8", "--num-gpus=1", **_RAY) as cluster:
        submit = [RAY, "job", "submit", "--address", cluster["dashboard"]]
        submit += ["--runtime-env-json", travels, "--", *command]
        return _run([*wrap, *submit], folder, clean_environment(**ENVIRONMENT))


def _run(
    command: list[str],
    folder: Path,
    environment: dict[str, str],
    hangs: Callable[[], bool] = lambda: False,
) -> int:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        until = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < until and not hangs():
            time.sleep(0.2)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def make_assets(folder: Path) -> Path:
    """Model, tokenizer and prompts; no network."""
    maker = Path(__file__).with_name("make_assets.py")
    subprocess.run([sys.executable, str(maker), str(folder)], check=True, env=clean_environment())
    return folder
