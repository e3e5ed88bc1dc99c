"""The command line: parse, call, print. What a command does lives in the floors below."""

from __future__ import annotations

import click

import rltrace
from rltrace.cli.group import Commands

_PLACES = {
    "Record": "wrap=jobs import=jobs:import_log ship=jobs",
    "Look": "report=looking top=looking stacks=looking timeline=exporting ls=looking:list_runs "
    "info=looking",
    "Ask": "query=querying whatif=asking compare=asking plan=asking triage=asking",
    "Decide": "experiment=jobs gate=gating baseline=gating",
    "Keep": "compact=looking export=exporting",
    "More": "doctor=looking sync=syncing completion=manual help=manual:help_",
}
"""By heading of `-h`, each command's module here, and what it is called there if not so."""

_HEADINGS = {
    heading: {name: f"{place}:{name}" if ":" not in place else place for name, place in of}
    for heading, of in ((h, [one.split("=") for one in t.split()]) for h, t in _PLACES.items())
}


@click.group(
    cls=Commands, headings=_HEADINGS, context_settings={"help_option_names": ["-h", "--help"]}
)
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
