"""AReaL 1.0.4 reads what is printed as its settings, by its own parser."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.settings import as_printed, plain

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("areal") is None, reason="areal is not installed here"
)

_NAMES = "experiment_name: sums, trial_name: one, fileroot: FOLDER"
CONFIG = """
experiment_name: sums
trial_name: one
total_train_epochs: 1
cluster: {fileroot: FOLDER, name_resolve: {type: nfs, nfs_record_root: FOLDER}}
rollout: {NAMES, backend: "sglang:d4p1t1", max_concurrent_rollouts: 256, max_head_offpolicyness: 2,
          scheduling_spec: "${actor.scheduling_spec}"}
gconfig: {n_samples: 4, max_new_tokens: 1024}
actor:
  experiment_name: sums
  trial_name: one
  backend: "fsdp:d4p1t1"
  path: model
  gradient_checkpointing: true
  mb_spec: {max_tokens_per_mb: 10240}
  kl_ctl: 0.0
  use_decoupled_loss: true
  rejection_sampling: {metric: ratio, upper: 5.0}
  scheduling_spec: [{task_type: worker, port_count: 2, gpu: 1, mem: 32}]
ref: {experiment_name: sums, trial_name: one, backend: "${actor.backend}", path: model,
      scheduling_spec: "${actor.scheduling_spec}"}
sglang: {mem_fraction_static: 0.8}
train_dataset: {path: sums, type: rl, batch_size: 8}
valid_dataset: {path: sums, type: rl, batch_size: 8}
saver: {NAMES}
recover: {mode: disabled, NAMES}
evaluator: {NAMES}
stats_logger: {NAMES}
"""
"""The keys of AReaL's own examples/math/gsm8k_grpo.yaml, as far as they matter here."""


def at(config: Any, option: str) -> Any:
    for name in plain(option).split("."):
        config = getattr(config, name)
    return config


def test_areal_reads_what_is_printed(tmp_path: Path) -> None:
    from areal.api.cli_args import GRPOConfig, load_expr_config

    file = tmp_path / "sums.yaml"
    file.write_text(CONFIG.replace("NAMES", _NAMES).replace("FOLDER", str(tmp_path)))
    made = list(as_printed("areal", "1.0.4"))
    assert made
    for _, settings, words in made:
        config, _ = load_expr_config(["--config", str(file), *words], GRPOConfig)
        assert {option: at(config, option) for option in settings} == settings
