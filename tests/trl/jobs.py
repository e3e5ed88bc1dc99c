"""TRL jobs as a user starts them, traced, and what they leave."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tests.framework_jobs import PLUGIN, Ended, assets_of, free_port

JOB = Path(__file__).with_name("job") / "train.py"
make_assets = partial(assets_of, "trl")

EACH = 4
"""Samples of a prompt."""


@dataclass(frozen=True)
class Job:
    """A way to run TRL: the kind of trainer, its options, and what the job reads."""

    kind: str
    steps: int = 4
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    ranks: int = 1

    def option(self, name: str, default: int) -> int:
        found = dict(option.split("=", 1) for option in self.options)
        return int(found.get(name, default))

    @property
    def updates_of_a_batch(self) -> int:
        """How many updates a generated batch serves; it is as large as two micro-batches need."""
        return self.option("steps_per_generation", 2) * self.option("num_iterations", 1) // 2


REUSED = ("num_iterations=2", "steps_per_generation=4")

JOBS: Mapping[str, Job] = {
    "grpo": Job("grpo", options=("reward_weights=[0.0,2.0]",)),
    "async": Job("async", steps=6),
    "rloo": Job("rloo", options=("num_iterations=2",)),
    "reused": Job("grpo", steps=8, options=REUSED),
    "server": Job("server", steps=8, options=REUSED),
    "ranks": Job("grpo", options=("num_iterations=2",), ranks=2),
    "adapter": Job("grpo", steps=3, options=("adapter=True", "beta=0.1")),
    "pairs": Job("pairs", steps=3),
}
QUICK = ("grpo", "async", "rloo", "ranks")
FAILS = Job("grpo", options=("functions=['identity','fails']",))
"""Its second reward function raises in the second step."""


class Finished(Ended[Job]):
    @cached_property
    def metrics(self) -> dict[int, dict[str, Any]]:
        state = json.loads((self.folder / "out/log.json").read_text())
        return {line["step"]: line for line in state["log_history"] if "train_runtime" not in line}


def train(job: Job, assets: Path, folder: Path, traced: bool = True, **how: Any) -> Finished:
    """Runs a job in a folder, by default traced; `how` as `Ended.of`."""
    out = folder / "out"
    out.mkdir(parents=True)
    launch = [sys.executable]
    if job.ranks > 1:
        launch += ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines=1"]
        launch += [f"--num_processes={job.ranks}", "--mixed_precision=no", "--dynamo_backend=no"]
        launch += [f"--main_process_port={free_port()}"]
    arguments = [job.kind, str(assets / "model"), str(out), f"max_steps={job.steps}", *job.options]
    environment = {
        "PYTHONPATH": str(PLUGIN),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
        **dict(job.environment),
    }
    command = [*launch, str(JOB), *arguments]
    return Finished.of(job, folder, command, traced, **how, **environment)
