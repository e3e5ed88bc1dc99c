"""Every benchmark, one after the other, and one table of what they are held to.

    python -m benchmarks [NAME ...] [--json] [--publish]

Takes half an hour; run it on a machine that does nothing else. Exits 1 when a limit is missed.
`--publish` keeps the figures in `benchmarks/measured.json`, which the table in docs/validation.md
is made of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

BENCHMARKS = (
    *("span_cost", "boot_cost", "kill_survival", "batch_cost", "overhead", "report_scale"),
    *("timeline_scale", "planned", "learning"),
)
MEASURED = Path(__file__).with_name("measured.json")
PAGE = Path(__file__).parent.parent / "docs" / "validation.md"
_BEGINS, _ENDS = "<!-- made by `python -m benchmarks --publish` -->\n", "<!-- end -->\n"


def measured(name: str) -> dict[str, Any]:
    """What a benchmark, run in a process of its own, says in JSON; how it failed, where it did."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = {"failed": f"exit code {done.returncode}"}
    return {"title": name, **said, "at": datetime.now(timezone.utc).date().isoformat()}


def rows(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    """What is measured, its figure with where measurements or its interval lie, and its limit."""
    table = []
    for name, said in found.items():
        if "failed" in said:
            table.append([name, f"failed: {said['failed']}", "", "missed"])
        for check in said.get("checks", ()):
            unit = f" {check['unit']}" if check["unit"] else ""
            figure = f"{check['figure']:,.3g}{unit}"
            if check.get("low") is not None:
                figure += f" ({check['low']:,.3g} to {check['high']:,.3g})"
            limit = "" if check["limit"] is None else f"{check['limit']:,.3g}{unit}"
            table.append([check["what"], figure, limit, "" if check["holds"] else "missed"])
    return table


def markdown(found: dict[str, dict[str, Any]]) -> str:
    """The table for people who read the documentation."""
    days = sorted({said["at"] for said in found.values()})
    cores = {said["cores"] for said in found.values() if "cores" in said}
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    on = " or ".join(map(str, sorted(cores)))
    lines = [
        f"`make bench`, {when}, on {on} cores. In brackets: 10 to 90 % of the measurements, or the",
        "interval of the figure.",
        *("", "| what | figure | limit |", "|---|---|---|"),
    ]
    for what, figure, limit, missed in rows(found):
        lines.append(f"| {what} | {figure}{': **missed**' if missed else ''} | {limit} |")
    return "\n".join(lines) + "\n"


def with_table(text: str, found: dict[str, dict[str, Any]]) -> str:
    """The page with the table of these figures. Errors: `ValueError` where it has no place."""
    before, begins, rest = text.partition(_BEGINS)
    _, ends, after = rest.partition(_ENDS)
    if not begins or not ends:
        raise ValueError("the page has no place for the table")
    return f"{before}{begins}{markdown(found)}{ends}{after}"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(BENCHMARKS))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--publish", is_flag=True, help="Keep the figures, and write them into the page.")
def main(names: tuple[str, ...], as_json: bool, publish: bool) -> None:
    """Runs benchmarks, by default all; exits 1 when a limit is missed."""
    found: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(names or BENCHMARKS, 1):
        click.echo(f"{name} ({number} of {len(names or BENCHMARKS)})", err=True)
        found[name] = {**measured(name), "cores": len(os.sched_getaffinity(0))}
    if publish:
        kept = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
        kept = {name: (kept | found)[name] for name in BENCHMARKS if name in kept | found}
        MEASURED.write_text(json.dumps(kept, indent=1) + "\n")
        PAGE.write_text(with_table(PAGE.read_text(), kept))
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        table = Table("what", "figure", "limit", "")
        for row in rows(found):
            table.add_row(*row)
        Console().print(table)
    sys.exit(1 if any(row[3] for row in rows(found)) else 0)


if __name__ == "__main__":
    main()
