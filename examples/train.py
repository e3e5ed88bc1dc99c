"""Trains a small policy from scratch with GRPO on Ray: python examples/train.py --help

It contains nothing of rltrace's tracing. To see where its time goes:

    rltrace wrap -- python examples/train.py
    rltrace report

Every setting of the trainer is an option; `--config FILE` reads them from a TOML file instead.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import click

from rltrace.trainer import Ledger, StepRecord, TrainerConfig, TrainerError, load_job, train
from rltrace.trainer.config import RunFailed

SHORT = {"learning_rate": "lr", "kl_coefficient": "kl"}


def setting_options(command: click.Command) -> click.Command:
    """Adds an option for each setting of the trainer."""
    for field in dataclasses.fields(TrainerConfig):
        about: dict[str, Any] = dict(field.metadata)
        flag = f"--{SHORT.get(field.name, field.name).replace('_', '-')}"
        unit = about["unit"] or None
        option = click.Option(
            [field.name, f"{flag}/--no-{flag[2:]}" if field.type == "bool" else flag],
            help=about["help"] + (f" [default: {field.default}]" if field.default != "" else ""),
            default=None,
            type=type(field.default),
            metavar=unit,
        )
        command.params.append(option)
    return command


@click.command()
@click.option("--config", type=click.Path(dir_okay=False), help="Settings in a TOML file.")
@click.option("--without-cause", is_flag=True, help="Apply the file's [without] table too.")
@click.option(
    "--ledger",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write what each step did, as JSON.",
)
def main(config: str | None, without_cause: bool, ledger: str | None, **given: Any) -> None:
    """Trains a small policy from scratch on a verifiable task."""
    if without_cause and not config:
        raise click.UsageError("--without-cause needs --config, a file that names the cause")
    if ledger is not None:
        check_writable(ledger)
    try:
        settings = load_job(config, without_cause) if config else {}
        settings |= {name: value for name, value in given.items() if value is not None}
        trainer = TrainerConfig.of(settings)
        books = Ledger(trainer)
        refused = False
        try:
            train(trainer, show, books)
        except TrainerError as error:
            refused = error.exit_code != RunFailed.exit_code
            raise
        finally:  # however it ended
            if ledger is not None and not refused:
                with click.open_file(ledger, "w", atomic=is_plain(ledger)) as file:
                    file.write(books.to_json())
    except TrainerError as error:
        if error.exit_code == 2:
            raise click.UsageError(str(error)) from None
        failure = click.ClickException(str(error))
        failure.exit_code = error.exit_code
        raise failure from None
    click.echo(summary(books))


def is_plain(path: str) -> bool:
    """Whether it is a file that another may take the place of, unlike `-` or a device."""
    return path != "-" and (Path(path).is_file() or not Path(path).exists())


def check_writable(path: str) -> None:
    """Better now than at the end; what is in the file stays until there is something better."""
    try:
        if is_plain(path):
            tempfile.TemporaryFile(dir=Path(path).resolve().parent).close()
    except OSError as error:
        raise click.BadParameter(f"cannot write {path!r}: {error.strerror}") from None


def show(record: StepRecord) -> None:
    """One line of progress."""
    rate = record.tokens_generated / record.seconds
    reward = "    -" if record.reward is None else f"{record.reward:.3f}"
    drops = ", ".join(f"{count} {why}" for why, count in record.drops.items())
    click.echo(
        f"step {record.step:3d}  reward {reward}  {rate:6,.0f} tokens/s"
        f"  lag {max(record.lags, default=0)}  {record.seconds:.2f} s"
        + (f"  dropped: {drops}" if drops else "")
    )


def summary(books: Ledger) -> str:
    """How the run went, in a line."""
    if not books.steps:
        return "no step was left to make"
    lost = sum(record.lost for record in books.steps)
    line = f"mean reward rose by {books.reward_rise():.2f} in {books.seconds:.0f} s"
    if books.events:
        line += f"; {len(books.events)} things went wrong (see above), {lost} samples were lost"
    return line


setting_options(main)

if __name__ == "__main__":
    main()
