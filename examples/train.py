"""Trains a small policy from scratch with GRPO on Ray: python examples/train.py --help

It contains nothing of rltrace's tracing. To see where its time goes:

    rltrace wrap -- python examples/train.py
    rltrace report
"""

from __future__ import annotations

from typing import Any, TextIO

import click

from rltrace.trainer import StepRecord, TrainerConfig, TrainerError, train

DEFAULT = TrainerConfig()


@click.command(context_settings={"show_default": True})
@click.option("--steps", default=DEFAULT.steps, help="Learner steps.")
@click.option("--seed", default=DEFAULT.seed, help="Same seed, same run.")
@click.option("--placement", default=DEFAULT.placement, help="Who runs when: colocated.")
@click.option("--task", default=DEFAULT.task, help="What is learned: sort, reverse or copy.")
@click.option("--symbols", default=DEFAULT.symbols, help="Different symbols in a prompt.")
@click.option("--longest", default=DEFAULT.longest, help="Longest prompt, in symbols.")
@click.option("--max-response", default=DEFAULT.max_response, help="Longest response, in tokens.")
@click.option("--prompts", default=DEFAULT.prompts, help="Prompts in a step.")
@click.option("--samples", default=DEFAULT.samples, help="Samples of each prompt: the group.")
@click.option(
    "--max-running", default=DEFAULT.max_running, help="Sequences a worker decodes at once."
)
@click.option("--width", default=DEFAULT.width, help="Width of the policy.")
@click.option("--layers", default=DEFAULT.layers, help="Layers of the policy.")
@click.option("--lr", "learning_rate", default=DEFAULT.learning_rate, help="Learning rate.")
@click.option("--minibatches", default=DEFAULT.minibatches, help="Optimizer updates in a step.")
@click.option(
    "--kl", "kl_coefficient", default=DEFAULT.kl_coefficient, help="Weight of the KL term."
)
@click.option("--rollout-workers", default=DEFAULT.rollout_workers, help="Rollout actors.")
@click.option("--reward-workers", default=DEFAULT.reward_workers, help="Reward actors.")
@click.option("--ray-address", default=DEFAULT.ray_address, help="A running cluster, or local.")
@click.option(
    "--ledger", type=click.File("w", lazy=False), help="Write what each step did, as JSON."
)
def main(ledger: TextIO | None, **settings: Any) -> None:
    """Trains a small policy from scratch on a verifiable task."""
    try:
        config = TrainerConfig(**settings)
        books = train(config, on_step=show)
    except TrainerError as error:
        raise click.UsageError(str(error)) from None
    if ledger is not None:
        ledger.write(books.to_json())
    click.echo(f"mean reward rose by {books.reward_rise():.2f} in {books.seconds:.0f} s")


def show(record: StepRecord) -> None:
    """One line of progress."""
    rate = record.tokens_generated / record.seconds
    lag = max(record.lags, default=0)
    click.echo(
        f"step {record.step:3d}  reward {record.reward:.3f}  {rate:6,.0f} tokens/s"
        f"  lag {lag}  {record.seconds:.2f} s"
    )


if __name__ == "__main__":
    main()
