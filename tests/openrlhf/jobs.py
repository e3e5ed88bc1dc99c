"""OpenRLHF jobs as a user starts them (examples/openrlhf/cpu.sh), traced, and what they leave."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import rltrace
from rltrace.trace.run import Run
from tests.hooks.conftest import WRAP, clean_environment

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "examples/openrlhf/cpu.sh"
PLUGIN = ROOT / "tests/openrlhf/plugin/openrlhf_cpu"
LIMIT_S = 900  # of one job, which takes one to two minutes on two idle cores

PROMPTS, SAMPLES = 4, 2
"""Prompts of a step, and answers to each."""

PARAMETERS, TENSORS = 320_640, 27
SYNC_BYTES = 2 * PARAMETERS
"""One policy on the wire to one engine, in bf16."""


@dataclass(frozen=True)
class Job:
    """A way to run OpenRLHF: its flags, and the environment of `cpu.sh`."""

    flags: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    steps: int = 4
    learners: int = 1
    engines: int = 1
    sync: bool = False
    """Whether rltrace.sync moves its weights."""


_ASYNC = (
    "--train.async_enable",
    "--train.async_queue_size=2",
    "--algo.advantage.is_correction_level=token",
)
_ZERO3 = (
    "--actor.num_gpus_per_node=2",
    "--ref.num_gpus_per_node=2",
    "--vllm.num_engines=2",
    "--ds.zero_stage=3",
)
_CRITIC = (
    "--reward.model_name_or_path={assets}/model",
    "--reward.num_gpus_per_node=1",
    "--critic.num_gpus_per_node=1",
    "--algo.advantage.estimator=gae",
)
_SLOW_TOKENS = (("OPENRLHF_CPU_TOKEN_SECONDS", "0.02"),)
"""A batch takes longer to answer than to train on, so that weights come while it is under way."""

JOBS: Mapping[str, Job] = {
    "async": Job(_ASYNC),
    "sync": Job(),
    "partial": Job((*_ASYNC, "--train.partial_rollout_enable"), _SLOW_TOKENS),
    "agent": Job((f"--train.agent_func_path={PLUGIN}/agent.py",), steps=3),
    "zero3": Job(_ZERO3, (("GPUS", "6"),), steps=3, learners=2, engines=2),
    "critic": Job(_CRITIC, (("GPUS", "5"), ("REWARD", "")), steps=3),
}
QUICK = ("async",)

_NOT_FINITE = re.compile(r"\b-?(nan|inf)\b")
_STEP = re.compile(r"Global step (\d+): ({.*?})\s*(?:\x1b.*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Finished:
    """A finished job: what OpenRLHF logged, what the plug-in stamped and, if traced, the run."""

    job: Job
    folder: Path
    code: int = 0

    @cached_property
    def run(self) -> Run:
        """The trace."""
        return rltrace.open_run(self.folder / "run")

    @cached_property
    def log(self) -> str:
        """All that the job printed."""
        return (self.folder / "log").read_text(errors="replace")

    @cached_property
    def metrics(self) -> dict[int, dict[str, Any]]:
        """OpenRLHF's own figures by step, as its log has them; None: no finite one."""
        return {
            int(step): ast.literal_eval(_NOT_FINITE.sub("None", text))
            for step, text in _STEP.findall(self.log)
        }

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
    meanwhile: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Finished:
    """Runs a job in a folder, by default traced into `run` there, until it ends with `code`.

    `meanwhile` is called with the running process; `code` None takes whatever the job ends with.
    """
    (folder / "stamps").mkdir(parents=True)
    flags = [flag.format(assets=assets) for flag in job.flags]
    flags.append(f"--data.max_samples={PROMPTS * job.steps}")
    flags += [f"--ckpt.path={folder}/checkpoints", f"--ckpt.output_dir={folder}/trained"]
    asked = ["--sync"] if job.sync else []
    wrap = [*WRAP, "--out", str(folder / "run"), *asked, "--"] if traced else []
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as ray_dir:
        environment = clean_environment(
            PYTHON=sys.executable,
            RAY_DIR=ray_dir,  # short: sockets have their paths there
            RAY_memory_monitor_refresh_ms="0",  # it kills for the memory of other programs
            RAY_raylet_start_wait_time_s="180",
            OPENRLHF_CPU_STAMPS=str(folder / "stamps"),
            **dict(job.environment),
        )
        command = [*wrap, str(LAUNCH), str(assets), *flags]
        ended = Finished(job, folder, _run(command, folder, environment, meanwhile))
    assert code is None or ended.code == code, ended.log[-8000:]
    return ended


def _run(
    command: list[str],
    folder: Path,
    environment: dict[str, str],
    meanwhile: Callable[[subprocess.Popen[bytes]], None] | None,
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
        try:
            if meanwhile is not None:
                meanwhile(process)
            return process.wait(LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
            raise


def end_left_over(job: Finished) -> None:
    """Kills what is left of a job that has ended: vLLM's processes outlive an actor that died."""
    mark = f"OPENRLHF_CPU_STAMPS={job.folder}/stamps".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue  # it has ended, or is not ours


def make_assets(folder: Path) -> Path:
    """Model, tokenizer and prompts; no network."""
    maker = Path(__file__).with_name("make_assets.py")
    subprocess.run([sys.executable, str(maker), str(folder)], check=True, env=clean_environment())
    return folder
