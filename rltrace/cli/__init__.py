"""The command line: parse, call, print. What a command does lives in the floors below."""

from __future__ import annotations

import click

import rltrace
from rltrace.cli.group import Commands

_HEADINGS = {
    "Record": {"wrap": "jobs:wrap", "import": "jobs:import_log", "ship": "jobs:ship"},
    "Look": {
        "report": "looking:report",
        "top": "looking:top",
        "stacks": "looking:stacks",
        "timeline": "exporting:timeline",
        "ls": "looking:list_runs",
        "info": "looking:info",
    },
    "Ask": {
        "query": "querying:query",
        "whatif": "asking:whatif",
        "compare": "asking:compare",
        "plan": "asking:plan",
        "triage": "asking:triage",
    },
    "Decide": {
        "experiment": "jobs:experiment",
        "gate": "gating:gate",
        "baseline": "gating:baseline",
    },
    "Keep": {"compact": "looking:compact", "export": "exporting:export"},
    "More": {
        "doctor": "looking:doctor",
        "sync": "syncing:sync",
        "completion": "manual:completion",
        "help": "manual:help_",
    },
}
"""By heading of `-h` and command: its module here, and what it is called there."""


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
