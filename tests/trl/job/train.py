"""Trains a tiny model with TRL, as a user's script does: `train.py KIND MODEL OUT [option=value]`.

KIND is grpo, rloo, pairs (online DPO), server (GRPO with a vLLM server) or async. Options are those
of TRL's configuration.
"""

from __future__ import annotations

import ast
import os
import sys
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import rewards
import trl
from datasets import Dataset
from peft import LoraConfig
from policy import Policy, watch
from transformers import AutoTokenizer
from watched import Updates, Watched

COMMON = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "logging_steps": 1,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "learning_rate": 1e-3,
}
FUNCTIONS = {name: getattr(rewards, name) for name in ("identity", "some", "fails")}


def prompts() -> Dataset:
    rows = [{"prompt": [{"role": "user", "content": f"{a}+{a * 7 % 90}="}]} for a in range(10, 74)]
    return Dataset.from_list(rows)


def synchronous(kind: str, model: str, out: str, options: dict[str, Any]) -> Any:
    """A trainer that generates itself."""
    config, base = {
        "grpo": (trl.GRPOConfig, trl.GRPOTrainer),
        "server": (trl.GRPOConfig, trl.GRPOTrainer),
        "rloo": (trl.RLOOConfig, trl.RLOOTrainer),
    }[kind]
    settings = {
        **COMMON, "num_generations": 4, "max_completion_length": 12, "temperature": 1.0,
        "beta": 0.04, "output_dir": out, **options,
    }  # fmt: skip
    functions = settings.pop("functions", ["identity", "some"])
    adapter = settings.pop("adapter", False)
    watched = type("Trainer", (Watched, base), {})
    trainer = watched(
        model=Policy.from_pretrained(model),
        reward_funcs=[FUNCTIONS[name] for name in functions],
        args=config(**settings),
        train_dataset=prompts(),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear")
        if adapter
        else None,
    )
    trainer.add_callback(Updates(trainer))
    return trainer


def pairs(model: str, out: str, options: dict[str, Any]) -> Any:
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    settings = {**COMMON, "max_new_tokens": 12, "output_dir": out, **options}
    return OnlineDPOTrainer(
        model=Policy.from_pretrained(model),
        reward_funcs=rewards.identity,
        args=OnlineDPOConfig(**settings),
        train_dataset=prompts(),
        processing_class=AutoTokenizer.from_pretrained(model),
    )


def main() -> None:
    """Trains, and writes TRL's own figures into `OUT/log.json`."""
    kind, model, out, *rest = sys.argv[1:]
    options = {name: _value(text) for name, _, text in (each.partition("=") for each in rest)}
    if kind == "pairs":
        trainer = pairs(model, out, options)
    elif kind == "async":
        from asynchronous import asynchronous

        trainer = asynchronous(model, out, options, COMMON, prompts())
    else:
        if kind == "server":
            from server import pretend

            pretend(model)
            options = {"use_vllm": True, "vllm_mode": "server", **options}
        trainer = synchronous(kind, model, out, options)
    if getattr(trainer, "ref_model", None) is not None:
        watch(trainer.ref_model, "reference")
    watch(trainer.model, "logprob")
    trainer.train()
    if trainer.accelerator.is_main_process:
        trainer.state.save_to_json(f"{out}/log.json")


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    main()
