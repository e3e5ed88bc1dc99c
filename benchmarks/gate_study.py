"""Is the gate right? Gates drawn from pools of real runs of the same job, and of slower ones.

    python -m benchmarks.gate_study [--runs 20] [--keep FOLDER] [--baseline-runs 5] [--json]
    python -m benchmarks.gate_study --keep FOLDER --evaluate     # of the runs there are, none anew

Pools (`gate_pools`): the job unchanged, with 5 % more time in the stage that binds, and in one that
hides behind it; on an idle machine and beside a busy core. A gate is one run of a pool, held to a
baseline of others of the unchanged pool on the same load. Each run is judged with several baselines
drawn at random; what counts is how often a gate says what. Gates of one run are no independent
trials, so the interval is binomial in the runs (Wilson 1927), not in the gates.

It fails where false alarms are more than 5 %, less than 90 % of the slowdowns are found, more than
20 % of the gates cannot tell, or a hidden slowdown fails the gate of goodput or is not named by the
one of its stage.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.gate_pools import BINDING, HIDDEN, LOADS, STAGE, UNCHANGED, fill, read
from rltrace.analysis.gate.absolute import Verdicts
from rltrace.analysis.gate.baseline import Baseline
from rltrace.analysis.gate.conditions import MAX_REGRESSION, Condition, parse_condition
from rltrace.analysis.gate.findings import PASS, REGRESSION, UNSURE, Finding
from rltrace.analysis.gate.judge import judge_series

GOODPUT = parse_condition(MAX_REGRESSION, "goodput=3%")
OF_STAGE = parse_condition(MAX_REGRESSION, f"stage.{STAGE[HIDDEN]}=3%")
BASELINES_A_RUN = 10

MOST_FALSE_ALARMS, LEAST_FOUND, MOST_UNSURE = 0.05, 0.90, 0.20

Pools = Mapping[tuple[str, str], Sequence[Baseline]]
Is = Callable[[Finding], bool]


@dataclass(frozen=True)
class Row:
    """How often the gates of a pool said something: `share` of `gates`, of `runs` runs, with its
    95 % interval; `at_least` or at most `limit`."""

    load: str
    pool: str
    gate: str
    what: str
    gates: int
    runs: int
    share: float
    low: float
    high: float
    limit: float
    at_least: bool

    @property
    def holds(self) -> bool:
        """Whether the share is as it must be."""
        return self.share >= self.limit if self.at_least else self.share <= self.limit


@dataclass(frozen=True)
class Asked:
    """What a pool's gates are asked, and what they have to say how often."""

    pool: str
    condition: Condition
    what: str
    holds: Is
    limit: float
    at_least: bool


def _says(outcome: str) -> Is:
    return lambda finding: finding.outcome == outcome


def _names(stage: str) -> Is:
    return lambda f: f.outcome == REGRESSION and f.stage is not None and f.stage.name == stage


QUESTIONS = (
    Asked(UNCHANGED, GOODPUT, "false alarm", _says(REGRESSION), MOST_FALSE_ALARMS, False),
    Asked(UNCHANGED, GOODPUT, "cannot tell", _says(UNSURE), MOST_UNSURE, False),
    Asked(UNCHANGED, OF_STAGE, "false alarm", _says(REGRESSION), MOST_FALSE_ALARMS, False),
    Asked(UNCHANGED, OF_STAGE, "cannot tell", _says(UNSURE), MOST_UNSURE, False),
    Asked(BINDING, GOODPUT, "found", _says(REGRESSION), LEAST_FOUND, True),
    Asked(BINDING, GOODPUT, "named", _names(STAGE[BINDING]), LEAST_FOUND, True),
    Asked(BINDING, GOODPUT, "cannot tell", _says(UNSURE), MOST_UNSURE, False),
    Asked(HIDDEN, GOODPUT, "false alarm", _says(REGRESSION), MOST_FALSE_ALARMS, False),
    Asked(HIDDEN, GOODPUT, "passes", _says(PASS), 1 - MOST_UNSURE, True),
    Asked(HIDDEN, OF_STAGE, "found", _names(STAGE[HIDDEN]), LEAST_FOUND, True),
    Asked(HIDDEN, OF_STAGE, "cannot tell", _says(UNSURE), MOST_UNSURE, False),
)


def evaluate(pools: Pools, baseline_runs: int, seed: int = 0) -> Iterator[Row]:
    """A row for each question and load. Errors: `ClickException` where a pool is too small."""
    for load in LOADS:
        gates: dict[tuple[str, Condition], list[list[Finding]]] = {}
        for asked in QUESTIONS:
            key = (asked.pool, asked.condition)
            if key not in gates:
                gates[key] = draw(pools, load, *key, baseline_runs, seed)
            yield _row(load, asked, gates[key])


def draw(
    pools: Pools, load: str, pool: str, condition: Condition, baseline_runs: int, seed: int
) -> list[list[Finding]]:
    """The findings of the gates of each run of a pool."""
    dice = np.random.default_rng(seed)
    unchanged = pools[load, UNCHANGED]
    if len(unchanged) <= baseline_runs or not pools[load, pool]:
        found = f"{len(unchanged)} unchanged and {len(pools[load, pool])} {pool} runs, {load}"
        raise click.ClickException(f"too few runs for baselines of {baseline_runs}: {found}")
    findings = []
    for judged in pools[load, pool]:
        others = [one for one in unchanged if one is not judged]
        findings.append(
            [
                _gate(
                    judged,
                    [others[i] for i in dice.permutation(len(others))[:baseline_runs]],
                    condition,
                )
                for _ in range(BASELINES_A_RUN)
            ]
        )
    return findings


def _gate(judged: Baseline, others: Sequence[Baseline], condition: Condition) -> Finding:
    before = [run for one in others for run in one.runs]
    (finding,) = judge_series(judged.runs, before, [condition], Verdicts(())).findings
    return finding


def _row(load: str, asked: Asked, gates: Sequence[Sequence[Finding]]) -> Row:
    by_run = [float(np.mean([asked.holds(one) for one in of_run])) for of_run in gates]
    share = float(np.mean(by_run))
    low, high = wilson(share, len(by_run))
    number = sum(map(len, gates))
    subject = asked.condition.text.removeprefix(f"{MAX_REGRESSION} ")
    return Row(
        load, asked.pool, subject, asked.what, number, len(by_run), share, low, high,
        asked.limit, asked.at_least,
    )  # fmt: skip


def wilson(share: float, trials: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share of so many independent trials (Wilson 1927)."""
    middle = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def show(rows: Sequence[Row], pools: Pools, console: Console) -> None:
    """The table for people."""
    table = Table(title="Gates drawn from pools of runs")
    for heading in ("load", "pool", "gate", "says"):
        table.add_column(heading)
    for heading in ("share", "95 %", "limit", "gates", "runs"):
        table.add_column(heading, justify="right")
    for row in rows:
        share = f"{row.share:.1%}" if row.holds else f"[red]✗ {row.share:.1%}[/]"
        limit = f"{'≥' if row.at_least else '≤'} {row.limit:.0%}"
        ends = f"{row.low:.1%} to {row.high:.1%}"
        numbers = (share, ends, limit, f"{row.gates}", f"{row.runs}")
        table.add_row(row.load, row.pool, row.gate, row.what, *numbers)
    console.print(table)
    for (load, pool), runs in pools.items():
        console.print(f"{load}, {pool}: {spread_of(runs)}", highlight=False)
    console.print(f"{sum(row.holds for row in rows)} of {len(rows)} rows hold")


def spread_of(runs: Sequence[Baseline]) -> str:
    """How long the steps of a pool's runs are, and by how much runs differ."""
    means = np.array([float(np.median(one.runs[0].columns["length_s"])) for one in runs])
    steps = min(one.runs[0].size for one in runs)
    spread = means.std(ddof=1) / means.mean() if len(means) > 1 else math.nan
    return (
        f"{len(runs)} runs of {steps} steps or more, {1000 * means.mean():.1f} ms a step (median), "
        f"runs differ by {spread:.2%} (sd)"
    )


@click.command()
@click.option("--runs", default=20, show_default=True, type=click.IntRange(min=1), help="A pool.")
@click.option("--baseline-runs", default=5, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    help="Keep the runs' figures here, or go on with those that are.",
)
@click.option("--evaluate", "only", is_flag=True, help="Run nothing: draw gates from what is kept.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(runs: int, baseline_runs: int, keep: Path | None, only: bool, as_json: bool) -> None:
    """How often gates are wrong, find a slowdown, and cannot tell; exits 1 where too often."""
    if only and keep is None:
        raise click.UsageError("--evaluate needs --keep: the folder with the runs")
    with tempfile.TemporaryDirectory() as folder:
        where = keep or Path(folder)
        if not only:
            fill(where, runs, lambda line: click.echo(line, err=True))
        pools = read(where)
        rows = list(evaluate(pools, baseline_runs))
    if as_json:
        plain = [{**asdict(row), "holds": row.holds} for row in rows]
        click.echo(json.dumps({"load": os.getloadavg(), "rows": plain}, indent=1))
    else:
        show(rows, pools, Console(width=120))
    sys.exit(0 if all(row.holds for row in rows) else 1)


if __name__ == "__main__":
    main()
