"""Makes tests/importers/fixtures with verl's own code. Needs verl 0.9.1 and tensorboard:

    python tests/importers/make_fixtures.py

The seconds and lengths are made up, of the size that the tiny CPU run of verl shows. What becomes
of them is verl's: `compute_timing_metrics`, `compute_throughout_metrics` and its `FileLogger`,
`LocalLogger` and `_TensorboardAdapter` write them as in a job.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from verl import DataProto
from verl.trainer.ppo.metric_utils import compute_throughout_metrics, compute_timing_metrics
from verl.utils.logger import LocalLogger
from verl.utils.tracking import FileLogger, _TensorboardAdapter

HERE = Path(__file__).parent / "fixtures"
BEGAN_S = 1_760_000_000.0
GPUS = 2


def metrics_of(step: int, timing: dict[str, float], rng: random.Random) -> dict[str, Any]:
    """What a step logs, from its timers, by verl's own functions."""
    lengths = torch.tensor([rng.randint(20, 64) for _ in range(32)])
    batch = DataProto.from_dict(
        {"prompt_length": torch.full((32,), 16), "response_length": lengths},
        meta_info={"global_token_num": (lengths + 16).tolist()},
    )
    return {
        "actor/grad_norm": rng.uniform(0.1, 1.0),
        "training/global_step": step,
        "training/epoch": 0,
        "response_length/mean": lengths.float().mean().item(),
        "response_length/max": lengths.max().item(),
        "response_length/min": lengths.min().item(),
        **compute_timing_metrics(batch=batch, timing_raw=timing),
        **compute_throughout_metrics(batch=batch, timing_raw=timing, n_gpus=GPUS),
    }


def off_policy(lags: list[int], spans: list[int]) -> dict[str, Any]:
    """The keys and types of `PPOTrainer._compute_metrics`."""
    of = {"trajectory_spans": np.array(spans), "trajectory_staleness": np.array(lags)}
    return {
        f"training/off_policy/{name}/{how}": getattr(values, how)()
        for name, values in of.items()
        for how in ("mean", "max", "min")
    }


def timing_of(
    rng: random.Random, gen: float, beyond: float = 0.03, **more: float
) -> dict[str, float]:
    timing = {
        "gen": gen,
        "old_log_prob": rng.uniform(0.18, 0.3),
        "ref": rng.uniform(0.14, 0.22),
        "adv": rng.uniform(0.004, 0.006),
        "update_actor": rng.uniform(0.3, 0.5),
        "update_weights": rng.uniform(0.016, 0.028),
        **more,
    }
    inside = sum(v for name, v in timing.items() if "/" not in name and name != "testing")
    return {**timing, "step": inside + beyond}


def v1_sync() -> None:
    os.environ["VERL_FILE_LOGGER_PATH"] = str(HERE / "v1_sync.jsonl")
    rng, logger = random.Random(1), FileLogger("p", "e")
    logger.log({"val-core/toy/acc/mean@1": np.float64(0.25)}, 0)
    for step in range(1, 7):
        more = {"testing": 4.1} if step == 6 else {}
        timing = timing_of(rng, 2.0 + rng.uniform(0.01, 0.02), 9.9 if step == 1 else 0.03, **more)
        logger.log(metrics_of(step, timing, rng) | off_policy([0] * 32, [1] * 32), step)
    logger.finish()


def separate_async() -> None:
    """Killed after step 4 and begun again from step 3: two event files in one folder."""
    import torch.utils.tensorboard.writer as torch_writer

    folder = HERE / "separate_async"
    os.environ["TENSORBOARD_DIR"] = str(folder)
    rng, clock = random.Random(2), SimpleNamespace(now=BEGAN_S)
    torch_writer.time = SimpleNamespace(time=lambda: clock.now)
    for part, numbers in enumerate((range(1, 5), range(3, 9))):
        logger = _TensorboardAdapter("p", "e")
        for step in numbers:
            more = {"switch_to_trainer": 0.11} if step == 1 else {}
            timing = timing_of(rng, rng.uniform(0.5, 1.5), **more)
            clock.now += timing["step"] + 0.25
            lag = min(step - 1, 2)
            found = metrics_of(step, timing, rng) | off_policy([lag, 0], [1, 1 + lag])
            logger.log(found, step)
        logger.finish()
        for file in folder.glob("*.tfevents.*"):
            if "imported" not in file.name:  # its name holds the host's and the process id
                file.rename(folder / f"events.out.tfevents.{1_760_000_000 + part}.imported.0")
        clock.now += 60


def legacy() -> None:
    rng, logger = random.Random(3), LocalLogger()
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        for step in range(1, 7):
            gen = rng.uniform(18, 22)
            loops = {
                f"agent_loop/generate_sequences/{how}": np.float64(gen * part)
                for how, part in (("min", 0.2), ("max", 0.98), ("mean", 0.5))
            }
            loops["agent_loop/compute_score/mean"] = np.float64(0.003)
            timing = timing_of(rng, gen, 0.03, reward=1.2e-05, start_profile=3.1e-06, **loops)
            logger.log(metrics_of(step, timing, rng), step)
    lines = ["{'actor_rollout_ref': {'actor': {'strategy': 'fsdp2'}},"]
    lines += [" 'trainer': {'use_v1': False,", "Training from scratch"]
    for number, line in enumerate(shown.getvalue().splitlines()):
        bar = f"Training Progress:  {10 * number}%|#  | {number}/6 [00:20<01:40, 20.1s/it]"
        lines += [f"\r{bar}", line]
    said = (f"\x1b[36m(TaskRunner pid=4711)\x1b[0m {line}\n" for line in lines)
    (HERE / "legacy_console.log").write_text("".join(said), "utf-8")


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    v1_sync()
    separate_async()
    legacy()
