"""The command line: parse, call, print. What a command does lives in the floors below."""

from __future__ import annotations

import click

import rltrace
from rltrace.cli import (
    asking,
    completing,
    exporting,
    gating,
    jobs,
    looking,
    planning,
    querying,
    syncing,
)
from rltrace.cli.group import Commands


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(rltrace.__version__, prog_name="rltrace")
def main() -> None:
    """Where an LLM RL post-training step goes, how stale its data is, and which stage binds.

    \b
    rltrace wrap -- python train.py    trace every process of a job, no code changed
    rltrace report                     the verdict on the newest run here

    RUN is a run's directory: without one, the newest in rltrace-runs/ here.

    Exit codes: 0 fine, 1 the answer is no, 2 wrong usage, 3 cannot tell, 4 unreadable or missing.
    """


for _command in (
    *(jobs.wrap, looking.report, looking.top, querying.query),
    *(looking.info, looking.list_runs, looking.doctor),
    *(planning.plan, planning.triage),
    *(asking.whatif, jobs.experiment, asking.compare, gating.gate, gating.baseline),
    *(exporting.timeline, exporting.export, jobs.import_log, looking.compact),
    *(jobs.ship, syncing.sync, completing.completion),
):
    main.add_command(_command)
