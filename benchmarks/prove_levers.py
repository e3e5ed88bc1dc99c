"""Do the gains that `rltrace whatif` predicts come?

    python -m benchmarks.prove_levers [--only TEXT ...] [--pairs 2] [--keep FOLDER] [--json]

Each job of benchmarks/levers.toml runs traced, and each change of it is predicted from that run
alone. All predictions stand in FOLDER/predictions.json before the first change is tried, and stay
as they are there. Then the job runs as it is and with the change, in turns; the changes of a job
share its runs as it is. A prediction holds if its range contains the measured gain (the mean of the
pairs). Gains are in percent of the step.

What is in FOLDER already is not run again, so an hour that was interrupted goes on.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import rltrace
from benchmarks.prove import RUN_LIMIT_SECONDS
from benchmarks.walls import ROOT, ended_well
from rltrace.testing.inside.analysis import Estimate, RunAnalysis, predict
from rltrace.testing.inside.analysis import lever_moves as moves
from rltrace.testing.inside.run import SettingsChange, experiment
from rltrace.testing.inside.trace import RltraceError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).parent / "levers.toml"
LEAST_INSIDE, MOST_ERROR, MOST_WIDTH = 0.9, 10.0, 1.4
LARGE = 0.15
"""A measured gain that is more than noise and small change; half of the cases have one."""


@dataclass(frozen=True)
class Case:
    """A change of a job."""

    job: str
    lever: str
    settings: Mapping[str, Any]
    computes: bool

    @property
    def name(self) -> str:
        return f"{self.job}: {self.lever}"

    @property
    def moved(self) -> str:
        """The lever that gives the case its row."""
        return self.lever.partition("=")[0]


@dataclass(frozen=True)
class Row:
    """What was predicted and measured: gains, as the step before over the step after."""

    case: Case
    low: float
    predicted: float
    high: float
    measured: float
    why: str = ""

    @property
    def is_inside(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def error_points(self) -> float:
        """Of the share of the step that is saved."""
        return 100 * abs(1 / self.predicted - 1 / self.measured)

    @property
    def width(self) -> float:
        return self.high / self.low


def cases(only: Sequence[str] = ()) -> list[Case]:
    told = tomllib.loads(FILE.read_text(encoding="utf-8"))
    found = [
        Case(job, lever, settings, told["job"][job].get("computes", False))
        for job, lever, settings in told["cases"]["list"]
    ]
    return [one for one in found if not only or any(text in one.name for text in only)]


def settings_of(job: str) -> dict[str, Any]:
    told = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {k: v for k, v in {**told["common"], **told["job"][job]}.items() if k != "computes"}


def run_job(job: str, folder: Path) -> Path:
    """The traced run of a job as it is. Errors: `ClickException` where it fails."""
    import subprocess

    run, config = folder / "as-it-is" / job, folder / f"{job}.toml"
    if ended_well(run):
        return run
    settings = settings_of(job).items()
    # Numbers, strings and booleans are the same in JSON and in TOML.
    config.write_text("[job]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in settings))
    wrap = [sys.executable, "-m", "rltrace", "wrap", "--out", str(run), "--"]
    train = [sys.executable, str(ROOT / "examples" / "train.py"), "--config", str(config)]
    done = subprocess.run(
        [*wrap, *train], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS, check=False
    )
    if done.returncode:
        raise click.ClickException(f"{job}: {done.stderr}")
    return run


def predictions(of: Sequence[Case], folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """By the name of a case: low, value and high, or why there is none. Kept in the folder."""
    file = folder / "predictions.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for case in (case for case in of if case.name not in found):
        say(f"{case.name}: predicted")
        source = RunAnalysis(rltrace.open_run(run_job(case.job, folder))).source
        try:
            if source is None:
                raise RltraceError("no workload is known of the run")
            gain = predict(source, moves(case.lever.split())).gain
            found[case.name] = {"low": gain.low, "value": gain.value, "high": gain.high}
        except RltraceError as error:
            found[case.name] = {"why": str(error)}
        file.write_text(json.dumps(found, indent=1))
    return found


def pairs_of(case: Case, folder: Path) -> Path:
    return folder / "pairs" / "".join(c if c.isalnum() else "-" for c in case.name)


def share_before(case: Case, where: Path, folder: Path) -> None:
    """Copies the runs of the job as it is from another of its changes."""
    for other in (pairs_of(one, folder) for one in cases() if one.job == case.job):
        for run in other.glob("*-before"):
            if ended_well(run) and not (where / run.name).exists():
                shutil.copytree(run, where / run.name)


def measure(case: Case, told: Mapping[str, Any], pairs: int, folder: Path, say: Any) -> Row:
    """Runs the job with and without the change. Errors: `RltraceError` where one fails."""
    if "why" in told:
        return Row(case, math.nan, math.nan, math.nan, math.nan, told["why"])
    predicted = Estimate(told["low"], told["value"], told["high"])
    change = SettingsChange(case.name, case.settings, predicted)
    where = pairs_of(case, folder)
    share_before(case, where, folder)
    run = rltrace.open_run(run_job(case.job, folder))
    plan = experiment.plan(run, change, pairs, where, resume=where.exists())
    gain = experiment.carry_out(plan, lambda line: say(f"{case.name}: {line}")).gain
    return Row(case, predicted.low, predicted.value, predicted.high, gain.value)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures that are asked for; of rows that were measured."""
    done = [row for row in rows if math.isfinite(row.measured)]
    if not done:
        return {"measured": 0}
    return {
        "cases": len(rows),
        "measured": len(done),
        "refused": sum(bool(row.why) for row in rows),
        "inside_share": sum(row.is_inside for row in done) / len(done),
        "median_error_points": float(np.median([row.error_points for row in done])),
        "median_width": float(np.median([row.width for row in done])),
        "computes_share": sum(row.case.computes for row in done) / len(done),
        "large_gain_share": sum(row.measured > 1 + LARGE for row in done) / len(done),
    }


def show(rows: Sequence[Row], console: Console) -> None:
    """A row a case, then a row a lever."""
    table = Table(title="What was predicted, and what came: step before / step after")
    for heading in ("case", "predicted", "range", "measured", "error, points"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        mark = "" if row.is_inside else "[red]✗ [/]"
        if row.why:
            table.add_row(row.case.name, "–", row.why, "–", "–")
        else:
            between = f"{row.low:.2f} to {row.high:.2f}"
            figures = f"{row.measured:.2f}", f"{row.error_points:.0f}"
            table.add_row(mark + row.case.name, f"{row.predicted:.2f}", between, *figures)
    console.print(table)
    by_lever: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if math.isfinite(row.measured):
            by_lever[row.case.moved].append(row)
    for lever, found in sorted(by_lever.items()):
        inside, error = sum(r.is_inside for r in found), np.median([r.error_points for r in found])
        console.print(f"{lever}: {inside} of {len(found)} inside, median error {error:.0f} points")


@click.command()
@click.option("--only", multiple=True, help="Cases with this in their name. Repeatable.")
@click.option("--pairs", default=2, show_default=True, type=click.IntRange(min=2))
@click.option("--keep", type=click.Path(path_type=Path), help="The folder.")
@click.option("--json", "as_json", is_flag=True)
def main(only: tuple[str, ...], pairs: int, keep: Path | None, as_json: bool) -> None:
    """The table; exits 1 where fewer hold than must."""
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")

    def say(line: str) -> None:
        click.echo(line, err=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        chosen = cases(only)
        told = predictions(chosen, folder, say)
        rows = []
        for case in sorted(chosen, key=lambda case: case.job):
            try:
                rows.append(measure(case, told[case.name], pairs, folder, say))
            except RltraceError as error:  # an hour's other rows are worth keeping
                rows.append(Row(case, math.nan, math.nan, math.nan, math.nan, str(error)))
    found = summary(rows)
    if as_json:
        plain = [{**asdict(row), "inside": row.is_inside} for row in rows]
        click.echo(json.dumps({"rows": plain, **found}, indent=1))
    else:
        show(rows, Console(width=130))
        for name, value in found.items():
            click.echo(f"{name}: {value:.3g}")
    held = found["measured"] and found["inside_share"] >= LEAST_INSIDE
    held = held and found["median_error_points"] <= MOST_ERROR
    sys.exit(0 if held and found["median_width"] <= MOST_WIDTH else 1)


if __name__ == "__main__":
    main()
