"""`rltrace sync bench`: how fast rltrace.sync is on this machine."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rltrace.cli.manual import command
from rltrace.cli.options import JSON, print_json
from rltrace.cli.output import console
from rltrace.trace.errors import WrongUsage

if TYPE_CHECKING:
    from rich.table import Table

    from rltrace.sync.bench.measuring import Row
    from rltrace.sync.bench.models import Model


_NEAR = 0.02  # a cut model is told apart from what was asked for by more than this share of it


@command()
@click.option("--model", "name", default="qwen2.5-0.5b", show_default=True, metavar="NAME|FILE")
@click.option("--megabytes", type=click.FloatRange(min=0), default=494.0, show_default=True)
@click.option("--receivers", "counts", default="1,2,4", show_default=True, metavar="N,N,…")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True)
@JSON
def bench(name: str, megabytes: float, counts: str, rounds: int, as_json: bool) -> None:
    """Move random weights to N receivers on this machine: the learner's stall, and the time until
    the last receiver has them.

    With digests, all checked, and without, which take turns in each round, after some that warm up.
    The floor is (1 + N) copies at the rate of two threads of memcpy, probed before each update; a
    stall is told in memcpys by one thread, too. Medians, and in brackets the best; "times" is the
    median of a way's time over that of the first in the same round; MB is what a version takes on
    its way, between learner and receivers.
    """
    from rltrace.sync.bench.measuring import OWN, measure
    from rltrace.sync.bench.models import model_of

    receivers = _counts(counts)
    model = model_of(name, megabytes)
    rows = measure(model, OWN, receivers, rounds, _progress())
    if as_json:
        print_json(_about(model) | {"rows": [_plain(row, rows) for row in rows]})
    else:
        console().print(_table(model, rows))
        for way, why in {row.way: row.missing for row in rows if row.missing}.items():
            click.echo(f"not measured: {way}: {why}")


def _progress() -> Callable[[str, bool], None]:
    """On a terminal a line that is written anew each time; else one for each number."""
    if not sys.stderr.isatty():
        return lambda now, is_new: click.echo(f"{now} …", err=True) if is_new else None
    width = shutil.get_terminal_size().columns - 1
    return lambda now, _: click.echo(f"\r{now[:width]:{width}}\r", err=True, nl=False)


def _counts(text: str) -> list[int]:
    counts = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if not all(0 < count <= 1024 for count in counts):
        raise WrongUsage(f"--receivers {text} is no list of numbers: 1,2,4,8")
    return counts


def _about(model: Model) -> dict[str, Any]:
    return {
        "model": model.name,
        "bytes": model.bytes,
        "tensors": len(model.tensors),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


def _plain(row: Row, rows: list[Row]) -> dict[str, Any]:
    said: dict[str, Any] = {"way": row.way, "receivers": row.receivers}
    if row.missing:
        return said | {"missing": row.missing}
    rounds = row.rounds
    return said | {
        "rounds": len(rounds),
        "between_bytes": row.between_bytes,
        "memcpy_one_thread_s": _figures([r.one_thread_s for r in rounds], min),
        "memcpy_two_threads_s": _figures([r.two_threads_s for r in rounds], min),
        "stall_s": _figures([r.stall_s for r in rounds], min),
        "stall_memcpys": _figures([r.stall_memcpys for r in rounds], min),
        "end_to_end_s": _figures([r.end_s for r in rounds], min),
        "floor_share": _figures([r.floor_share for r in rounds], max),
        "times": row.times(next(r for r in rows if r.receivers == row.receivers)),
    }


def _figures(values: list[float], best: Callable[[list[float]], float]) -> dict[str, float]:
    return {"median": statistics.median(values), "best": best(values)}


def _table(model: Model, rows: list[Row]) -> Table:
    from rich.table import Table

    about = _about(model)
    cut = ""
    if abs(model.bytes - model.asked_bytes) > _NEAR * model.asked_bytes > 0:
        cut = f" (not {model.asked_bytes / 1e6:,.0f}: layers are moved whole, at least one)"
    table = Table(
        title=f"{model.name}: {model.bytes / 1e6:,.0f} MB{cut} in {about['tensors']} tensors,"
        f" {about['cores']} cores, load {about['load']:.1f}",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("way", no_wrap=True)
    for heading in ("N", "stall ms", "memcpys", "end ms", "times", "% of floor", "MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if row.missing:
            continue
        said = _plain(row, rows)
        table.add_row(
            row.way,
            str(row.receivers),
            f"{said['stall_s']['median'] * 1e3:,.1f}",
            _cell(said["stall_memcpys"], 1, 2),
            f"{said['end_to_end_s']['median'] * 1e3:,.1f}",
            f"{said['times']:.2f}",
            _cell(said["floor_share"], 100, 0),
            f"{row.between_bytes / 1e6:,.0f}",
        )
    return table


def _cell(figures: dict[str, float], times: float, digits: int) -> str:
    median, best = (figures[name] * times for name in ("median", "best"))
    return f"{median:,.{digits}f} ({best:,.{digits}f})"
