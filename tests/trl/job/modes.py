"""Trains a tiny model with TRL in ways that users do: `modes.py KIND MODEL OUT [option=value]`.

KIND is grpo or kto, with options of its configuration, or after: supervised fine-tuning, and then
GRPO on what that left, which is evaluated before it trains, and as it does.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import rewards
import trl
from datasets import Dataset
from job_stamps import stamp
from train import COMMON, _value, prompts
from transformers import AutoTokenizer


def reinforced(model: str, out: str, **options: Any) -> Any:
    """A trainer of GRPO that stamps its evaluations."""

    class Trainer(trl.GRPOTrainer):  # type: ignore[misc]
        """TRL's own, but for the stamps."""

        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            """As TRL does."""
            start_ns = time.time_ns()
            found = super().evaluate(*args, **kwargs)
            stamp("evaluation", start_ns)
            return found

    settings = {**COMMON, "num_generations": 4, "max_completion_length": 12, **options}
    return Trainer(
        model=model,
        reward_funcs=[rewards.identity, rewards.some],
        args=trl.GRPOConfig(output_dir=out, reward_weights=[1.0, 0.5], **settings),
        train_dataset=prompts(),
        eval_dataset=prompts().select(range(4)),
        processing_class=AutoTokenizer.from_pretrained(model),
    )


def supervised(model: str, out: str) -> Any:
    rows = [{"prompt": f"{a}+1=", "completion": str(a + 1)} for a in range(10, 42)]
    data = Dataset.from_list(rows)
    settings = {**COMMON, "max_steps": 3, "eval_strategy": "steps", "eval_steps": 2}
    return trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(output_dir=out, **settings),
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        processing_class=AutoTokenizer.from_pretrained(model),
    )


def judged(model: str, out: str, **options: Any) -> Any:
    """A trainer of KTO, whose answers are there, and are good or bad."""
    rows = [{"prompt": f"{a}+1=", "completion": str(a + a % 2), "label": a % 2 == 1}
            for a in range(10, 42)]  # fmt: skip
    return trl.KTOTrainer(
        model=model,
        args=trl.KTOConfig(output_dir=out, **{**COMMON, **options}),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model),
    )


def main() -> None:
    """Trains, and writes TRL's own figures of the last trainer into `OUT/log.json`."""
    kind, model, out, *rest = sys.argv[1:]
    options = {name: _value(text) for name, _, text in (each.partition("=") for each in rest)}
    resumed = options.pop("resume", None)
    if kind == "after":
        first = supervised(model, f"{out}/first")
        first.train()
        model = f"{out}/tuned"
        first.save_model(model)
        options |= {"eval_strategy": "steps", "eval_steps": 2}
    trainer = (judged if kind == "kto" else reinforced)(model, out, **options)
    if kind == "after":
        trainer.evaluate()
    trainer.train(resume_from_checkpoint=resumed)
    if trainer.accelerator.is_main_process:
        trainer.state.save_to_json(f"{out}/log.json")


if __name__ == "__main__":
    main()
