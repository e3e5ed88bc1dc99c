"""The newest state of the learner: in memory, and in a file."""

from __future__ import annotations

import dataclasses
import errno
import io
import os
from pathlib import Path
from typing import Any

import torch

from rltrace.trainer.config import TrainerConfig, TrainerError, Unreadable

_MUST_BE_EQUAL = (
    "seed", "task", "symbols", "shortest", "longest", "mean_length", "length_tail", "merges",
    "pass_mark", "warm_start", "max_response", "prompts", "samples", "model_size", "layers",
    "heads", "objective", "learning_rate", "minibatches", "clip", "truncate", "kl_coefficient",
    "recompute_old", "drop_truncated", "retokenize",
)  # fmt: skip


class Checkpoint:
    """`step` is the next one to make; its weights are the version after `version`. Errors:
    `TrainerError` where no file can be written, `Unreadable` where there is none to go on from."""

    def __init__(self, config: TrainerConfig) -> None:
        self.config = config
        self.path = Path(config.checkpoint) if config.checkpoint else None
        self.step = self.version = 0
        self.state: dict[str, Any] | None = None
        if self.path is not None:
            try:  # better now than at the first checkpoint
                if self.path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                _partial(self.path).touch()
                _partial(self.path).unlink()
            except OSError as error:
                said = f"no checkpoint can be kept in {self.path}: {error.strerror}"
                raise TrainerError(said) from None
        if config.resume:
            self._load()

    def save(self, step: int, version: int, state: dict[str, Any]) -> None:
        """Keeps a state; the file changes as a whole or not at all. Errors: `OSError`."""
        self.step, self.version, self.state = step, version, state
        if self.path is None:
            return
        settings = dataclasses.asdict(self.config)
        record = {"step": step, "version": version, "state": state, "settings": settings}
        buffer = io.BytesIO()  # first: where a disk is full, torch raises what does not say so
        torch.save(record, buffer)
        partial = _partial(self.path)
        try:
            with open(partial, "wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def _load(self) -> None:
        assert self.path is not None, "the settings are checked for it"
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise Unreadable(f"cannot resume from {self.path}: {error.strerror}") from None
        try:
            record = torch.load(io.BytesIO(content), weights_only=True)
            settings = dict(record["settings"])
            self.step, self.version = int(record["step"]), int(record["version"])
            self.state = dict(record["state"])
        except Exception:  # whatever the bytes of another file make of torch's reader
            raise Unreadable(f"cannot resume from {self.path}: it is no whole checkpoint") from None
        now = dataclasses.asdict(self.config)
        changed = [k for k in _MUST_BE_EQUAL if settings.get(k) != now[k]]
        if changed:
            said = f"{self.path} is of a run with another {', '.join(changed)}"
            raise TrainerError(f"{said}: resume with the same")


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")
