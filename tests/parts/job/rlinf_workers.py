"""Workers of RLinf's scheduler that generate and train nothing."""

from __future__ import annotations

import time
from typing import Any

from job_stamps import stamp
from rlinf.scheduler import Worker

import rltrace

EACH = 3
"""Samples of a rank and step."""


class Rollout(Worker):
    """Makes samples with the version that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.version = self.made = 0

    def rollout(self, channel: Any) -> None:
        for _ in range(EACH):
            sample = f"{self._rank}/{self.made}"
            self.made += 1
            with rltrace.trajectory(sample, version=self.version, prompt_tokens=3) as trajectory:
                time.sleep(0.02)
                trajectory.finish("stop", response_tokens=self.made, version=self.version)
            channel.put({"sample": sample, "tokens": self.made, "version": self.version})
            stamp("put", sample=sample, tokens=self.made, version=self.version)

    def load(self, version: int) -> None:
        """Has other weights from here on; the second rank is a step late."""
        self.version = max(0, version - self._rank)


class Actor(Worker):
    """Takes all samples of a step."""

    def __init__(self) -> None:
        super().__init__()

    def run_training(self, channel: Any, step: int, ranks: int) -> None:
        for _ in range(ranks * EACH):
            one = channel.get()
            rltrace.use(one["sample"], "trained", step=step, version=step, tokens=one["tokens"])
            stamp("got", step=step, lag=step - one["version"], **one)
