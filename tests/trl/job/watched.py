"""What the job writes down of its own training, as any user's trainer and callback may."""

from __future__ import annotations

import time
from typing import Any

from job_stamps import stamp
from rewards import content
from transformers import TrainerCallback


class Watched:
    """A trainer that says what it generates and what it trains on; it stands before TRL's."""

    state: Any
    loss_ns = 0

    def _generate(self, prompts: list[Any]) -> Any:
        start_ns = time.time_ns()
        found = super()._generate(prompts)  # type: ignore[misc]
        stamp(
            "made",
            start_ns,
            step=self.state.global_step,
            samples=[content(ids) for ids in found[1]],
            tokens=[len(ids) for ids in found[1]],
        )
        return found

    def compute_loss(self, model: Any, inputs: Any, **kwargs: Any) -> Any:
        self.loss_ns = time.time_ns()
        samples = [
            ids[mask.bool()].tolist()
            for ids, mask in zip(inputs["completion_ids"], inputs["completion_mask"], strict=True)
        ]
        stamp(
            "trained",
            self.loss_ns,
            step=self.state.global_step,
            samples=[content(ids) for ids in samples],
            tokens=[len(ids) for ids in samples],
        )
        return super().compute_loss(model, inputs, **kwargs)  # type: ignore[misc]


class Updates(TrainerCallback):
    """From the loss of a micro-batch to where the loop goes on: backward, clipping, optimizer."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        """A micro-batch that is not an update's last."""
        stamp("train", self.trainer.loss_ns)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """The last one."""
        stamp("train", self.trainer.loss_ns)
