"""TRL's own words: what it calls the times that it logs.

`LABELS` serves the adapter and the importer. The synchronous trainers give their times, one row a
call, to wandb, mlflow and trackio only; the asynchronous ones log theirs everywhere, since 1.10 or
somewhat later under these names.
"""

from __future__ import annotations

from collections.abc import Mapping

PROFILED = "profiling/Time taken: "
"""What TRL's timed blocks are logged as, followed by `<class>.<block>`."""

LABELS: Mapping[str, str] = {
    "vLLM.generate": "rollout",
    "transformers.generate": "rollout",
    "transformers.generate_batch": "rollout",
    "_calculate_rewards": "reward",
    "sync_weights": "sync",
    "compute_loss": "train",
    "perf/rollout_wait_s": "wait",
    "perf/fwd_bwd_s": "train",
    "perf/optimizer_s": "train",
    "perf/weight_sync_s": "sync",
    "weight_sync_time_s": "sync",
    "perf/step_s": "step",
}
"""TRL's timed block, or its figure of a step, -> stage. `compute_loss` is the forward pass only."""
