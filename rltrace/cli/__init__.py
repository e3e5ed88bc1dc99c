"""The command line: parse, call, print. What a command does lives in the floors below."""

from __future__ import annotations

from itertools import chain

import click

import rltrace
from rltrace.cli import (
    asking,
    completing,
    exporting,
    gating,
    jobs,
    looking,
    querying,
    syncing,
)
from rltrace.cli.group import Commands
from rltrace.cli.manual import command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(rltrace.__version__, prog_name="rltrace")
def main() -> None:
    """Where an LLM RL post-training step goes, how stale its data is, and what limits it.

    \b
    rltrace wrap -- python train.py    trace every process of a job, no code changed
    rltrace report                     the newest run here: its wall, and what to change

    RUN is a run's name, or the begin of it, or its directory. Without it: the newest run in
    rltrace-runs/ here.

    Exit codes: 0 fine, 1 the answer is no, 2 wrong usage, 3 cannot tell, 4 unreadable or missing.
    """


@command("help", short_help="What a command does and takes.")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> None:
    """What a command does and takes: `rltrace help report`."""
    assert ctx.parent is not None
    context = ctx.parent
    group: click.Group = main
    for word in words:
        name, found, _ = group.resolve_command(context, [word])
        assert found is not None
        context = click.Context(found, info_name=name, parent=context)
        if not isinstance(found, click.Group):
            break
        group = found
    click.echo(context.command.get_help(context))


_GROUPS = {
    "Record": (jobs.wrap, jobs.import_log, jobs.ship),
    "Look": (looking.report, looking.top, exporting.timeline, looking.list_runs, looking.info),
    "Ask": (querying.query, asking.whatif, asking.compare, asking.plan, asking.triage),
    "Decide": (jobs.experiment, gating.gate, gating.baseline),
    "Keep": (looking.compact, exporting.export),
    "More": (looking.doctor, syncing.sync, completing.completion, help_),
}
for _command in chain.from_iterable(_GROUPS.values()):
    main.add_command(_command)
main.group_of = {one.name or "": heading for heading, of in _GROUPS.items() for one in of}
