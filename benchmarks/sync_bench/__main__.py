"""rltrace.sync alone: the learner's stall, and the time until the last receiver has the weights.

    python -m benchmarks.sync_bench [--model NAME|FILE] [--megabytes 494] [--receivers 1,2,4]

Moves random weights to N receivers on this machine, with digests, all checked, and without, which
take turns in each round, after some that warm up. The floor is (1 + N) copies at the rate of two
threads of memcpy, probed before each update; a stall is told in memcpys by one thread, too.
Medians, and in brackets the best; "times" is the median of a way's time over that of the first in
the same round; MB is what a version takes on its way, between learner and receivers. Exits 1 where
a receiver did not hold what was sent, 3 where one ended.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Callable
from typing import Any

import click

from benchmarks.sync_bench.measuring import OWN, BenchRow, counts_of, measure
from benchmarks.sync_bench.models import Model, model_of
from rltrace.testing.inside.cli import answer
from rltrace.testing.inside.report import Section, document_of, layout_table, numbers
from rltrace.testing.inside.trace import RltraceError

_NEAR = 0.02  # a cut model is told apart from what was asked for by more than this share of it


@click.command(help=__doc__)
@click.option(
    "--model", "name", default="qwen2.5-0.5b", show_default=True, metavar="NAME|FILE",
    help="Whose tensors: qwen2.5-0.5b, or those of a safetensors file, whole.",
)  # fmt: skip
@click.option(
    "--megabytes", type=click.FloatRange(min=0), default=494.0, show_default=True,
    help="About so much of NAME, by fewer tokens and layers (whole ones, at least one); 0: all.",
)  # fmt: skip
@click.option(
    "--receivers", "counts", default="1,2,4", show_default=True, metavar="N,N,…",
    help="How many receive at once, one measurement each.",
)  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(min=1), default=7, show_default=True,
    help="Updates that are measured, of each way.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True)
def main(name: str, megabytes: float, counts: str, rounds: int, as_json: bool) -> None:
    try:
        model = model_of(name, megabytes)
        rows = measure(model, OWN, counts_of(counts), rounds, _progress())
    except RltraceError as error:
        click.echo(str(error), err=True)
        raise SystemExit(error.exit_code) from None
    about = {"model": model.name, "bytes": model.bytes, "tensors": len(model.tensors)}
    machine = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    found = {**about, **machine, "rows": [_plain(row, rows) for row in rows]}
    answer(as_json, document_of("sync-bench", found), [_measured(model, found)])


def _progress() -> Callable[[str, bool], None]:
    """On a terminal a line that is written anew each time; else one for each number."""
    if not sys.stderr.isatty():
        return lambda now, is_new: click.echo(f"{now} …", err=True) if is_new else None
    width = shutil.get_terminal_size().columns - 1
    return lambda now, _: click.echo(f"\r{now[:width]:{width}}\r", err=True, nl=False)


def _plain(row: BenchRow, rows: list[BenchRow]) -> dict[str, Any]:
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


def _measured(model: Model, document: dict[str, Any]) -> Section:
    cut = ""
    if abs(model.bytes - model.asked_bytes) > _NEAR * model.asked_bytes > 0:
        cut = f" (not {model.asked_bytes / 1e6:,.0f}: layers are moved whole, at least one)"
    about = "{tensors} tensors, {cores} cores, load {load:.1f}".format(**document)
    rows = []
    for row in (row for row in document["rows"] if "missing" not in row):
        stall_s, end_s = row["stall_s"]["median"], row["end_to_end_s"]["median"]
        stall = f"{stall_s * 1e3:,.1f}", _cell(row["stall_memcpys"], 1, 2)
        end = f"{end_s * 1e3:,.1f}", f"{row['times']:.2f}", _cell(row["floor_share"], 100, 0)
        moved = f"{row['between_bytes'] / 1e6:,.0f}"
        rows.append((row["way"], str(row["receivers"]), *stall, *end, moved))
    titles = ("N", "stall ms", "memcpys", "end ms", "times", "% of floor", "MB")
    missing = {row["way"]: row["missing"] for row in document["rows"] if "missing" in row}
    return Section(
        f"{model.name}: {model.bytes / 1e6:,.0f} MB{cut} in {about}",
        grid=layout_table(rows, "way", *numbers(*titles)),
        notes=tuple(f"not measured: {way}: {why}" for way, why in missing.items()),
    )


def _cell(figures: dict[str, float], times: float, digits: int) -> str:
    median, best = (figures[name] * times for name in ("median", "best"))
    return f"{median:,.{digits}f} ({best:,.{digits}f})"


if __name__ == "__main__":
    main()
