"""Does the demo learn, in every placement? Mean reward of the first and last five steps, by seed.

    python -m benchmarks.learning [--placement NAME ...] [--seeds 3] [--steps N] [--json]

A run takes about a minute. The last one trains with learning rate 0 and must not rise. For async
the largest lag that was trained on is given: what it learns, it learns from samples that old.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from benchmarks.measuring import Check, Result, spread
from benchmarks.walls import reward_rise
from rltrace.testing.inside.trainer import config_PLACEMENTS as PLACEMENTS
from rltrace.testing.inside.trainer import ray_session
from rltrace.trainer import Ledger, TrainerConfig, TrainerError, train

LEAST_RISE = 0.3  # of a reward that is at most 1
MOST_RISE_WITHOUT_LEARNING = 0.1
MAX_LAG = 2


def largest_lag(ledger: Ledger) -> int:
    """The oldest sample that was trained on, in policy versions."""
    return max((lag for record in ledger.steps for lag in record.lags), default=0)


def told(ledger: Ledger) -> str:
    """How a run went, in a line."""
    rewards = [record.reward for record in ledger.steps if record.reward is not None]
    first, last = sum(rewards[:5]) / len(rewards[:5]), sum(rewards[-5:]) / len(rewards[-5:])
    return (
        f"reward {first:.2f} to {last:.2f} in {len(ledger.steps)} steps, {ledger.seconds:.0f} s;"
        f" largest lag trained on {largest_lag(ledger)}"
    )


@click.command(context_settings={"show_default": True})
@click.option("--placement", "placements", multiple=True, default=PLACEMENTS)
@click.option("--seeds", default=3, help="Number of seeds.")
@click.option("--steps", default=TrainerConfig().steps, help="Learner steps.")
@click.option("--lr", "learning_rate", default=TrainerConfig().learning_rate, help="Learning rate.")
@click.option("--task", default=TrainerConfig().task, help="What is learned.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(
    placements: tuple[str, ...],
    seeds: int,
    steps: int,
    learning_rate: float,
    task: str,
    as_json: bool,
) -> None:
    """Trains once for each placement and seed, and once with learning rate 0."""
    try:
        base = TrainerConfig(steps=steps, learning_rate=learning_rate, task=task, max_lag=MAX_LAG)
        jobs = [replace(base, placement=name) for name in placements]
    except TrainerError as error:
        raise click.UsageError(str(error)) from None
    result = Result("Mean reward of the demo's last five steps minus the first five", "hundredths")

    def rise(config: TrainerConfig, name: str) -> float:
        ledger = train(config)
        result.notes[f"{name}, seed {config.seed}"] = told(ledger)
        click.echo(f"{name}, seed {config.seed}: {told(ledger)}", err=True)
        return reward_rise([vars(record) for record in ledger.steps])

    with ray_session(base):
        for job in jobs:
            rises = [rise(replace(job, seed=seed), job.placement) for seed in range(seeds)]
            result.rows[job.placement] = spread([100 * value for value in rises])
            # A limit is the most that may be: of what is missing to a reward rise of 1.
            what = f"{job.placement}: 1 - the smallest rise"
            result.checks.append(Check(what, 1 - min(rises), 1 - LEAST_RISE, ""))
        still = rise(replace(base, learning_rate=0.0), "learning rate 0")
    result.checks.append(Check("learning rate 0: rise", still, MOST_RISE_WITHOUT_LEARNING, ""))
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
