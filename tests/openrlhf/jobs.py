"""OpenRLHF jobs as a user starts them (examples/openrlhf/cpu.sh), traced, and what they leave."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tests.adapters.sources import OPENRLHF
from tests.framework_jobs import ROOT, Ended, assets_of
from tests.hooks.conftest import clean_environment

LAUNCH = ROOT / "examples/openrlhf/cpu.sh"
make_assets = partial(assets_of, "openrlhf")
PLUGIN = ROOT / "tests/openrlhf/plugin/openrlhf_cpu"

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
    served: bool = False
    """Whether its rewards come from a server."""
    version: str = ""
    """Of OpenRLHF (empty: the one that is installed)."""


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
    "whole": Job(_ASYNC, sync=True),
    "partial": Job((*_ASYNC, "--train.partial_rollout_enable"), _SLOW_TOKENS),
    "served": Job(environment=(("REWARD_DELAY_S", "0.2"),), served=True),
    "agent": Job((f"--train.agent_func_path={PLUGIN}/agent.py",), steps=3),
    "zero3": Job(_ZERO3, (("GPUS", "6"),), steps=3, learners=2, engines=2),
    "critic": Job(_CRITIC, (("GPUS", "5"), ("REWARD", "")), steps=3),
}
QUICK = ("async", "whole")

_NOT_FINITE = re.compile(r"\b-?(nan|inf)\b")
_EVALUATION = re.compile(r"valuation completed.*?({.*?})")
_STEP = re.compile(r"Global step (\d+): ({.*?})\s*(?:\x1b.*)?$", re.MULTILINE)


class Finished(Ended[Job]):
    @cached_property
    def metrics(self) -> dict[int, dict[str, Any]]:
        """OpenRLHF's own figures by step, as its log has them; None: no finite one."""
        return {
            int(step): ast.literal_eval(_NOT_FINITE.sub("None", text))
            for step, text in _STEP.findall(self.log)
        }

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """OpenRLHF's own figures of each evaluation."""
        return [ast.literal_eval(text) for text in _EVALUATION.findall(self.log)]


def train(job: Job, assets: Path, folder: Path, traced: bool = True, **how: Any) -> Finished:
    """Runs a job in a folder, by default traced; `how` as `Ended.of`."""
    flags = [flag.format(assets=assets) for flag in job.flags]
    flags.append(f"--data.max_samples={PROMPTS * job.steps}")
    flags += [f"--ckpt.path={folder}/checkpoints", f"--ckpt.output_dir={folder}/trained"]
    command = [str(LAUNCH), str(assets), *flags]
    how["options"] = [*how.get("options", ()), *(["--sync"] if job.sync else [])]
    environment = {**dict(job.environment), **OPENRLHF.instead(job.version)}
    with served(folder, environment) if job.served else nullcontext(environment) as known:
        return Finished.of(job, folder, command, traced, **how, **known)


@contextmanager
def served(folder: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment of a job with a reward server of its own, which is there meanwhile and stamps
    what it judges in the job's folder."""
    stamps = folder / "stamps"
    stamps.mkdir(parents=True)
    path = os.pathsep.join(str(place) for place in (PLUGIN.parent, ROOT / "tests/plugin"))
    around = clean_environment(**environment, PYTHONPATH=path, JOB_STAMPS=str(stamps))
    command = [sys.executable, "-m", "openrlhf_cpu.reward_server"]
    with subprocess.Popen(command, env=around, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield {**environment, "REWARD": server.stdout.readline().strip()}
        finally:
            server.kill()


def end_left_over(job: Finished) -> None:
    """Kills what is left of a job that has ended: vLLM's processes outlive an actor that died."""
    mark = f"JOB_STAMPS={job.folder}/stamps".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue  # it has ended, or is not ours
