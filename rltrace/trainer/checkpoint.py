"""The newest state of the learner: in the controller's memory, and in a file where one is named."""

from __future__ import annotations

import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from rltrace.trainer.config import TrainerConfig, TrainerError

_MAY_DIFFER = (
    "steps", "placement", "rollout_workers", "reward_workers", "joined_cluster", "checkpoint",
    "checkpoint_every", "resume", "max_lag", "link_gbps", "reward_latency", "env_latency",
)  # fmt: skip


class Checkpoint:
    """`step` is the next one to make, `version` that of the weights; `state` is `None` at first."""

    def __init__(self, config: TrainerConfig) -> None:
        self.config = config
        self.path = Path(config.checkpoint) if config.checkpoint else None
        self.step = 0
        self.version = 0
        self.state: dict[str, Any] | None = None
        if self.path and not self.path.parent.is_dir():
            raise TrainerError(f"there is no folder {self.path.parent} to keep a checkpoint in")
        if config.resume:
            self._load()

    def save(self, step: int, version: int, state: dict[str, Any]) -> None:
        """Keeps a state; the file changes as a whole or not at all."""
        self.step, self.version, self.state = step, version, state
        if self.path is None:
            return
        record = {"step": step, "version": version, "state": state}
        partial = self.path.with_name(self.path.name + ".partial")
        with open(partial, "wb") as file:
            torch.save({**record, "settings": dataclasses.asdict(self.config)}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)

    def _load(self) -> None:
        assert self.path is not None, "the settings are checked for it"
        try:
            record = torch.load(self.path, weights_only=True)
            settings = record["settings"]
            self.step, self.version = record["step"], record["version"]
            self.state = record["state"]
        except (OSError, EOFError, RuntimeError, KeyError, TypeError, pickle.PickleError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no checkpoint"
            raise TrainerError(f"cannot resume from {self.path}: {why}") from None
        now = dataclasses.asdict(self.config)
        changed = [k for k in now if k not in _MAY_DIFFER and settings.get(k) != now[k]]
        if changed:
            raise TrainerError(
                f"{self.path} is of a run with another {', '.join(changed)}: resume with the same"
            )

    def __str__(self) -> str:
        return f"step {self.step}"
