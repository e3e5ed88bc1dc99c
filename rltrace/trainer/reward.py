"""The reward role: a verifier that scores one trajectory after the other."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.task import task_of
from rltrace.trainer.trajectory import Reward, Trajectory


class RewardWorker:
    def __init__(self, config: TrainerConfig, index: int) -> None:
        self.latency = config.reward_latency
        self.task = task_of(config)

    def score(self, trajectories: Sequence[Trajectory]) -> list[Reward]:
        return [self.verify(trajectory) for trajectory in trajectories]

    def verify(self, trajectory: Trajectory) -> Reward:
        """One verdict. A verifier that hangs or fails gives none, and says so."""
        start_ns = time.monotonic_ns()
        value, outcome = float("nan"), "ok"
        try:
            value = self.task.reward(trajectory.prompt, trajectory.tokens.tolist())
        except subprocess.TimeoutExpired:
            outcome = "timeout"
        except (OSError, subprocess.SubprocessError):
            outcome = "error"
        time.sleep(max(0.0, self.latency - (time.monotonic_ns() - start_ns) / 1e9))
        return Reward(trajectory.id, value, self.task.name, outcome, start_ns, time.monotonic_ns())
