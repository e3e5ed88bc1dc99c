"""Commands that move weights: a relay on each node, and its memory."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rltrace.cli.manual import Command
from rltrace.cli.options import JSON, print_json
from rltrace.trace.errors import ANSWER_IS_NO, WrongUsage

if TYPE_CHECKING:
    from rltrace.sync.memory.holders import HeldPolicy


@click.group()
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
