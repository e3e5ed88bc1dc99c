"""Makes the fixtures of OpenRLHF's logs, and of wandb's files, with the frameworks' own code. Needs
verl 0.9.1, wandb 0.31, torch, tensorboard, and OpenRLHF's sources in a folder (for their loggers
only: nothing else of OpenRLHF is imported):

    RLTRACE_OPENRLHF_SOURCES=... python tests/importers/make_openrlhf_fixtures.py

The times of the synchronous run are those of OpenRLHF 0.11.2 on two CPU cores (a model of 0.3 M
parameters, 8 samples a step); those of the asynchronous one are made up, of that size. wandb's
files hold the time at which they were made. (openrlhf_async_console.log is not made here: it is
lines that such a run printed, OpenRLHF 0.11.2 with --train.async_enable.)
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent / "fixtures"
SOURCES = Path(os.environ["RLTRACE_OPENRLHF_SOURCES"])
BEGAN_S = 1_760_000_000.0
STATED = {
    "WANDB_MODE": "offline", "WANDB_API_KEY": "0" * 40, "WANDB_HOST": "host",
    "WANDB_DATA_DIR": "/tmp/wandb-data", "WANDB_USERNAME": "user", "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_GIT": "true", "WANDB_DISABLE_CODE": "true", "WANDB_X_DISABLE_META": "true",
    "WANDB_X_DISABLE_STATS": "true", "WANDB_X_DISABLE_MACHINE_INFO": "true",
}  # fmt: skip
"""Nothing of the machine on which they are made is to be in the files."""

SYNC = [
    (4.246, 0.131, 0.226, 0.135),
    (0.310, 0.084, 0.138, 0.106),
    (0.328, 0.084, 0.137, 0.097),
    (0.405, 0.107, 0.130, 0.210),
]
"""timing/generation, make_experience, ppo_train and broadcast of each step."""

ASYNC = [
    (3.9, 0.13, 0.22, 1.06, 5.45),
    (1.1, 0.09, 0.14, 0.80, 1.05),
    (1.2, 0.09, 0.14, 1.08, 1.34),
    (1.0, 0.10, 0.13, 0.95, 1.22),
    (1.1, 0.09, 0.14, 0.91, 1.16),
]
"""The same, and timing/step_total."""


def loggers(version: str) -> Any:
    """OpenRLHF's utils/logging_utils.py of a version."""
    file = SOURCES / version / "openrlhf/utils/logging_utils.py"
    return SimpleNamespace(**runpy.run_path(str(file)))


def arguments() -> SimpleNamespace:
    """What `hierarchize` makes of the command line, as far as loggers look at it."""
    wandb = SimpleNamespace(key="none", org=None, project="rlhf", group=None, run_name="run")
    return SimpleNamespace(
        logger=SimpleNamespace(wandb=wandb, tensorboard_dir="runs", logging_steps=1),
        train=SimpleNamespace(async_enable=False, colocate_all=False),
    )


def status(step: int, timing: tuple[float, ...]) -> dict[str, Any]:
    """What `train_step` and `fit` put together, in their order."""
    generation, *others = timing[:4]
    names = ("timing/make_experience", "timing/ppo_train", "timing/broadcast")
    parts = dict(zip(names, others, strict=True))
    return {
        "policy_loss": 0.01 / step,
        "kl": 0.0001 * (step - 1),
        "actor_lr": 1e-06,
        "actor_grad_norm": float("nan") if step == 1 else 0.5 + 0.1 * step,
        **parts,
        "rollout/reward_mean": 0.125 * step,
        "rollout/reward_std": 0.35,
        "rollout/response_length_mean": 61.25 + step,
        "rollout/truncated_rate": 0.25,
        "rollout/num_samples": 8.0,
        "generated_samples": ["1+2=3", 0.5],
        "timing/generation": generation,
        "timing/step_total": timing[4] if timing[4:] else sum(others) + generation,
    }


def sync_wandb(folder: Path) -> None:
    """A synchronous run of 0.11.2 with an evaluation after the fourth step."""
    logger = loggers("0.11.2").WandbLogger(arguments())
    for step, timing in enumerate(SYNC, 1):
        time.sleep(sum(timing))
        logger.log_train(step, status(step, timing))
    logger.log_eval(4, {"eval_default_pass1": 0.25, "eval_num_samples": 8.0})
    logger.close()
    keep(folder, "openrlhf.wandb")


def verl_wandb(folder: Path) -> None:
    """verl's own tracking; long enough for a record to lie across wandb's blocks."""
    from verl.utils.tracking import Tracking

    config = {"trainer": {"use_v1": True, "v1": {"trainer_mode": "colocate_async"}}}
    tracking = Tracking("p", "e", ["wandb"], config)
    for step in range(1, 14):
        timing = {"gen": 30.0 + step, "old_log_prob": 5.0, "update_actor": 20.0}
        loops = {f"agent_loop/generate_sequences/{n}": 12.5 + n for n in range(20)}
        named = {**timing, **loops, "update_weights": 1.0, "step": 57.0 + step}
        lag = {"training/off_policy/trajectory_staleness/max": 1.0, "training/global_step": step}
        data = {f"timing_s/{name}": value for name, value in named.items()}
        tracking.log({**data, **lag}, step)
    tracking.logger["wandb"].finish()
    keep(folder, "verl.wandb")


def keep(folder: Path, name: str) -> None:
    import wandb

    wandb.teardown()  # only then is all of the file written
    file = next(folder.glob("wandb/offline-run-*/run-*.wandb"))
    shutil.copyfile(file, HERE / name)


def async_events(folder: Path) -> None:
    """An asynchronous run, which ended its fifth step and not a sixth."""
    import torch.utils.tensorboard.writer as torch_writer

    clock = SimpleNamespace(now=BEGAN_S)
    torch_writer.time = SimpleNamespace(time=lambda: clock.now)
    logger = loggers("0.11.2").TensorboardLogger(arguments())
    for step, timing in enumerate(ASYNC, 1):
        clock.now += timing[-1]
        logger.log_train(step, status(step, timing))
        if step == 3:
            logger.log_eval(2, {"eval_default_pass1": 0.5})
    logger.close()
    found = next((folder / "runs/run").glob("*.tfevents.*"))
    (HERE / "openrlhf_async").mkdir(exist_ok=True)
    # The name holds the host's and the process id.
    found.rename(HERE / "openrlhf_async/events.out.tfevents.1760000000.imported.0")


def console(_: Path) -> None:
    """The synchronous run by OpenRLHF's logger, as Ray passes it on; killed within its last line.
    As of 0.9.6 the numbers of the rollout are not in it."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        logger = loggers("0.9.6").init_logger("openrlhf.trainer.ppo_trainer")
        for step, timing in enumerate(SYNC, 1):
            named = status(step, timing).items()
            said = {k: v for k, v in named if k != "generated_samples" and "rollout/" not in k}
            logger.info(f"✨ Global step {step}: {said | {'dynamic_filtering_pass_rate': None}}")
    actor = "\x1b[36m(PPOTrainer pid=4711)\x1b[0m "
    lines = [f"{actor}INFO 11-21 13:00:00 vllm_engine.py:63] engines are up"]
    for number, line in enumerate(shown.getvalue().splitlines()):
        bar = f"Episode [1/1]:  {25 * number}%|#  | {number}/4 [00:20<01:40, 20.1s/it]"
        lines += [f"{actor}\r{bar}", f"{actor}{line}"]
    text = "\n".join(lines)
    (HERE / "openrlhf_console.log").write_text(text[: text.rindex(", 'dynamic")], "utf-8")


if __name__ == "__main__":
    os.environ |= STATED
    HERE.mkdir(exist_ok=True)
    for make in (sync_wandb, verl_wandb, async_events, console):
        with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
            make(Path(name))
