"""Does the demo learn? Mean reward of the first and last five steps, for several seeds.

    python benchmarks/learning.py [--seeds 5] [--steps N]

The last row trains with learning rate 0 and must not rise. Exits 1 where a limit is missed.
"""

from __future__ import annotations

from dataclasses import replace

import click
from rich.console import Console
from rich.table import Table

from rltrace.trainer import TrainerConfig, TrainerError, train
from rltrace.trainer.run import ray_session

WINDOW_STEPS = 5
LEAST_RISE = 0.3  # of a reward that is at most 1
MOST_RISE_WITHOUT_LEARNING = 0.1


@click.command(context_settings={"show_default": True})
@click.option("--seeds", default=5, help="Number of seeds.")
@click.option("--steps", default=TrainerConfig().steps, help="Learner steps.")
@click.option("--lr", "learning_rate", default=TrainerConfig().learning_rate, help="Learning rate.")
@click.option("--task", default=TrainerConfig().task, help="What is learned.")
def main(seeds: int, steps: int, learning_rate: float, task: str) -> None:
    """Trains once for each seed, and once with learning rate 0."""
    try:
        base = TrainerConfig(steps=steps, learning_rate=learning_rate, task=task)
    except TrainerError as error:
        raise click.UsageError(str(error)) from None
    runs = [replace(base, seed=seed) for seed in range(seeds)]
    runs.append(replace(base, learning_rate=0.0))
    table = Table("seed", "learning rate", "first reward", "last reward", "rise", "s", "s a step")
    missed = []
    with ray_session(base):
        for config in runs:
            ledger = train(config)
            rewards = [record.reward for record in ledger.steps]
            first, last = (
                sum(part) / len(part) for part in (rewards[:WINDOW_STEPS], rewards[-WINDOW_STEPS:])
            )
            durations = sorted(record.seconds for record in ledger.steps)
            figures = (first, last, last - first, ledger.seconds, durations[len(durations) // 2])
            table.add_row(
                str(config.seed), f"{config.learning_rate:g}", *(f"{x:.2f}" for x in figures)
            )
            rise = last - first
            learns = config.learning_rate > 0
            if rise < LEAST_RISE if learns else rise > MOST_RISE_WITHOUT_LEARNING:
                missed.append(f"seed {config.seed}, learning rate {config.learning_rate:g}")
    Console().print(table)
    if missed:
        raise SystemExit("limit missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
