"""Commands that move weights: a relay on each node, and its memory and speed."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from rltrace.cli.manual import Command
from rltrace.cli.options import JSON, answer, print_json
from rltrace.trace.errors import ANSWER_IS_NO, RltraceError, WrongUsage

if TYPE_CHECKING:
    from rltrace.report.layout import Section
    from rltrace.sync.bench.measuring import BenchRow
    from rltrace.sync.bench.models import Model
    from rltrace.sync.memory.holders import HeldPolicy

_BROUGHT_BY = {
    **dict.fromkeys(("xxhash", "zstandard", "safetensors"), "'rltrace-toolkit[sync]'"),
    "torch": "torch",
}


class SyncCommands(click.Group):
    """The commands of rltrace.sync, which say what to install where that is not here."""

    def invoke(self, ctx: click.Context) -> Any:
        """As click's. Errors: `RltraceError` where a package is missing."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as missing:
            if missing.name not in _BROUGHT_BY:
                raise
            needs = f"{ctx.command_path} needs {missing.name}, which is not installed"
            raise RltraceError(f"{needs}: pip install {_BROUGHT_BY[missing.name]}") from None


@click.group(cls=SyncCommands)
def sync() -> None:
    """Move weights from the learner to rollout workers."""


@sync.command(cls=Command)
@click.argument("where", default="shm://policy")
@click.option("--follow", "parent", metavar="tcp://HOST:PORT/POLICY")
@click.option("--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT")
@click.option("--fanout", type=click.IntRange(min=0), default=0)
@click.option("--keep", type=click.IntRange(1, 8), default=2, show_default=True)
@click.option("--streams", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--gbps", type=click.FloatRange(min=0), default=0.0)
@click.option("--dense", is_flag=True)
@JSON
def serve(
    where: str,
    parent: str | None,
    listen: str,
    fanout: int,
    keep: int,
    streams: int,
    gbps: float,
    dense: bool,
    as_json: bool,
) -> None:
    """Run a node's relay: hold the latest version at WHERE, and serve it to others, until SIGTERM.

    On the learner's host `rltrace sync serve shm://policy --listen 0.0.0.0:7000`; on each rollout
    host `rltrace sync serve shm://policy --follow tcp://LEARNER:7000/policy`, from which workers
    there pull as from a publisher. What others can reach takes a secret: RLTRACE_SYNC_TOKEN.
    """
    from rltrace.run.child_process import ended_by_signal
    from rltrace.sync.transfer.relay import ParentReach, Relay
    from rltrace.sync.transfer.version_follower import Received

    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise WrongUsage(f"--listen {listen} is no HOST:PORT")
    host = host.strip("[]") or "0.0.0.0"

    def tell(received: Received) -> None:
        progress = received.progress
        said = {
            "version": str(received.manifest.version),
            "step": received.manifest.step,
            "parent": received.parent,
            "transfer_s": round(received.seconds, 6),
            "bytes": received.manifest.bytes,
            "wire_bytes": progress.wire_bytes,
            "damaged_blocks": len(progress.damaged),
            "broken_connections": progress.broken,
        }
        if as_json:
            _line(said)
        else:
            size, wire = received.manifest.bytes / 1e6, progress.wire_bytes / 1e6
            took = f"{received.seconds:.3f} s from {received.parent}"
            click.echo(f"{said['version']}: {size:,.1f} MB as {wire:,.1f} MB in {took}")

    with ended_by_signal() as ended:
        if parent is None:
            relay = Relay.serve(where, host, int(port), fanout, gbps)
        else:
            relay = Relay.follow(
                *(parent, where, host, int(port), fanout, keep, streams, not dense, gbps),
                on_received=tell,
            )
        with relay:
            if as_json:
                said = {"address": relay.address, "on_all_networks": relay.on_all_networks}
                _line({**said, "where": where, "parent": parent})
            else:
                at = "on all networks of this host; " if relay.on_all_networks else ""
                click.echo(f"others follow {relay.address} ({at}Ctrl-C ends it)")
            reach = ParentReach()
            while relay.ended_by is None and not ended.wait(0.1):
                if (news := reach.news(relay.status)) is not None:
                    click.echo(news, err=True)
            if relay.ended_by is not None:
                raise relay.ended_by


def _line(said: dict[str, object]) -> None:
    """One line of JSON, now: whoever reads it waits for it."""
    click.echo(json.dumps(said))


@sync.command(name="ls", cls=Command)
@click.argument("places", nargs=-1, metavar="[WHERE]...")
@JSON
def list_(places: tuple[str, ...], as_json: bool) -> None:
    """List the policies in this host's shared memory: versions, memory, and who holds them."""
    from rltrace.sync.memory.holders import policies

    found = policies(*places)
    if as_json:
        print_json({"policies": [asdict(held) for held in found]})
        return
    for held in found:
        said = held.trouble or f"version {held.version}"
        click.echo(f"{held.where}  {held.memory_bytes / 1e6:,.1f} MB  {said}")
        for line in _holders(held) or ["nobody"]:
            click.echo(f"    held by {line}")
    if not found:
        click.echo("there is no policy in shared memory")


@sync.command(cls=Command)
@click.argument("places", nargs=-1, metavar="[WHERE]...")
@JSON
@click.pass_context
def rm(context: click.Context, places: tuple[str, ...], as_json: bool) -> None:
    """Free the memory of policies that nobody holds: those at WHERE, or all.

    Exits 1 where one that is named is held by somebody.
    """
    from rltrace.sync.memory.holders import policies, remove

    found = policies(*places)
    removed = [held for held in found if not held.is_held and remove(held)]
    kept = [held for held in found if held not in removed]
    if as_json:
        lists = {"removed": removed, "kept": kept}
        print_json({name: [asdict(held) for held in which] for name, which in lists.items()})
    else:
        freed = sum(held.memory_bytes for held in removed)
        click.echo(f"{len(removed)} removed, {freed / 1e6:,.1f} MB freed")
        for held in kept if places else ():
            who = "; ".join(_holders(held)) or "something that is not rltrace's"
            click.echo(f"{held.where} stays: held by {who}", err=True)
    if places and kept:
        context.exit(ANSWER_IS_NO)


def _holders(held: HeldPolicy) -> list[str]:
    seen = [
        f"{each.pid}, which {'publishes' if each.publishes else 'reads'}"
        f"{' and is stopped' * each.is_stopped}: {each.command:.80}"
        for each in held.holders
    ]
    return seen or ["processes that cannot be seen from here"] * held.is_held


_NEAR = 0.02  # a cut model is told apart from what was asked for by more than this share of it


@sync.command(cls=Command)
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

    receivers = [int(part) if part.isdecimal() else 0 for part in counts.split(",")]
    if not all(0 < count <= 1024 for count in receivers):
        raise WrongUsage(f"--receivers {counts} is no list of numbers: 1,2,4,8")
    model = model_of(name, megabytes)
    rows = measure(model, OWN, receivers, rounds, _progress())
    about = {"model": model.name, "bytes": model.bytes, "tensors": len(model.tensors)}
    machine = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    document = {**about, **machine, "rows": [_plain(row, rows) for row in rows]}
    answer(as_json, document, [_measured(model, document)])


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
    from rltrace.report.layout import Section, numbers, table

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
        grid=table(rows, "way", *numbers(*titles)),
        notes=tuple(f"not measured: {way}: {why}" for way, why in missing.items()),
    )


def _cell(figures: dict[str, float], times: float, digits: int) -> str:
    median, best = (figures[name] * times for name in ("median", "best"))
    return f"{median:,.{digits}f} ({best:,.{digits}f})"
