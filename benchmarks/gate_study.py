"""Is the gate right? Gates drawn from pools of real runs of the same job, and of slower ones.

    python -m benchmarks.gate_study [--runs 20] [--keep FOLDER] [--baseline-runs 5] [--json]
    python -m benchmarks.gate_study --keep FOLDER --evaluate     # of the runs there are, none anew

Pools (`gate_pools`): the job unchanged, with 5 % more time in the stage that binds, and in one that
hides behind it; on an idle machine and beside a busy core. A gate holds a run of a pool to a
baseline of others of the unchanged pool on the same load. It is judged alone, and in the way of
`examples/ci/gate.sh`: where it does not pass, two more runs of its pool are judged with it.

It fails where, in the way of gate.sh, false alarms are more than 5 %, less than 90 % of the
slowdowns are found, more than 20 % of the gates cannot tell, or a hidden slowdown fails the gate of
goodput or is not named by the one of its stage; and where runs alone give more than 5 % of false
alarms. How often they cannot tell is shown: it is what the other runs are for.

Gates that share a run are no independent trials (`spread_of_share`): an interval is that of
Clopper and Pearson (1934) for as many trials as make up for it, at most one a run. Limits are held
against the share that is seen: where 20 runs give no false alarm the interval still reaches to
17 %. So many runs do not prove a rate of 5 %; simulations hold the rates (tests/analysis/gate/
test_rates), and this holds what they assume of the noise against real runs.
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
from rltrace.testing.inside.analysis import (
    MAX_REGRESSION,
    PASS,
    REGRESSION,
    UNSURE,
    Condition,
    Finding,
    judge_series,
    parse_condition,
)
from rltrace.testing.inside.analysis import baseline_Baseline as Baseline
from rltrace.testing.inside.analysis import metrics as m

GOODPUT = parse_condition(MAX_REGRESSION, "goodput=3%")
OF_STAGE = parse_condition(MAX_REGRESSION, f"stage.{STAGE[HIDDEN]}=3%")
CHECKS = 3  # runs that a gate judges at most, as gate.sh does
PARTITIONS = 2  # of the unchanged pool into baselines

FALSE_ALARM = "false alarm"
MOST_FALSE_ALARMS, LEAST_FOUND, MOST_UNSURE = 0.05, 0.90, 0.20

Pools = Mapping[tuple[str, str], Sequence[Baseline]]
Is = Callable[[Finding], bool]


@dataclass(frozen=True)
class Row:
    """How often the gates of a pool said something with up to `checks` runs: `share` of `gates`, of
    `runs` runs, with its 95 % interval; `at_least` or at most `limit` (NaN: it is only shown)."""

    load: str
    pool: str
    gate: str
    what: str
    checks: int
    gates: int
    runs: int
    trials: int
    share: float
    low: float
    high: float
    limit: float
    at_least: bool

    @property
    def holds(self) -> bool:
        """Whether the share is as it must be."""
        if math.isnan(self.limit):
            return True
        return self.share >= self.limit if self.at_least else self.share <= self.limit


@dataclass(frozen=True)
class Gate:
    """What a run got: `alone`, and `last` when others had been added where it did not pass. Its
    baseline is that of number `baseline` of a partition."""

    alone: Finding
    last: Finding
    partition: int
    baseline: int


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
    Asked(UNCHANGED, GOODPUT, FALSE_ALARM, _says(REGRESSION), MOST_FALSE_ALARMS, False),
    Asked(UNCHANGED, GOODPUT, "cannot tell", _says(UNSURE), MOST_UNSURE, False),
    Asked(UNCHANGED, OF_STAGE, FALSE_ALARM, _says(REGRESSION), MOST_FALSE_ALARMS, False),
    Asked(UNCHANGED, OF_STAGE, "cannot tell", _says(UNSURE), MOST_UNSURE, False),
    Asked(BINDING, GOODPUT, "found", _says(REGRESSION), LEAST_FOUND, True),
    Asked(BINDING, GOODPUT, "named", _names(STAGE[BINDING]), LEAST_FOUND, True),
    Asked(BINDING, GOODPUT, "cannot tell", _says(UNSURE), MOST_UNSURE, False),
    Asked(HIDDEN, GOODPUT, FALSE_ALARM, _says(REGRESSION), MOST_FALSE_ALARMS, False),
    Asked(HIDDEN, GOODPUT, "passes", _says(PASS), 1 - MOST_UNSURE, True),
    Asked(HIDDEN, OF_STAGE, "found", _names(STAGE[HIDDEN]), LEAST_FOUND, True),
    Asked(HIDDEN, OF_STAGE, "cannot tell", _says(UNSURE), MOST_UNSURE, False),
)


def evaluate(pools: Pools, baseline_runs: int, seed: int = 0) -> Iterator[Row]:
    """Rows for each load and question. Errors: `ClickException` where a pool is too small."""
    for load in LOADS:
        gates: dict[tuple[str, Condition], list[list[Gate]]] = {}
        for asked in QUESTIONS:
            key = (asked.pool, asked.condition)
            if key not in gates:
                gates[key] = draw(pools, load, *key, baseline_runs, seed)
            yield _row(load, asked, gates[key], CHECKS)
            yield _row(load, asked, gates[key], 1)


def draw(
    pools: Pools, load: str, pool: str, condition: Condition, baseline_runs: int, seed: int
) -> list[list[Gate]]:
    """The gates of each run of a pool: by baselines that partition the unchanged runs, those left
    out that it is in."""
    dice = np.random.default_rng(seed)
    unchanged, judged = pools[load, UNCHANGED], pools[load, pool]
    count = len(unchanged) // baseline_runs
    if count < 2 or not judged:
        found = f"{len(unchanged)} unchanged and {len(judged)} {pool} runs, {load}"
        raise click.ClickException(f"too few runs for two baselines of {baseline_runs}: {found}")
    gates: list[list[Gate]] = [[] for _ in judged]
    for partition in range(PARTITIONS):
        order = [unchanged[i] for i in dice.permutation(len(unchanged))]
        for number in range(count):
            before = order[number * baseline_runs : (number + 1) * baseline_runs]
            free = [run for run in judged if not any(run is one for one in before)]
            for run, of_run in zip(judged, gates, strict=True):
                if not any(run is one for one in free):
                    continue
                others = [one for one in free if one is not run]
                more = [others[i] for i in dice.permutation(len(others))[: CHECKS - 1]]
                alone = last = _judge([run], before, condition)
                if alone.outcome != PASS and more:
                    last = _judge([run, *more], before, condition)
                of_run.append(Gate(alone, last, partition, number))
    return gates


def _judge(judged: Sequence[Baseline], before: Sequence[Baseline], condition: Condition) -> Finding:
    sides = ([run for one in side for run in one.runs] for side in (judged, before))
    (finding,) = judge_series(*sides, [condition]).findings
    return finding


def _row(load: str, asked: Asked, gates: Sequence[Sequence[Gate]], checks: int) -> Row:
    said = [[asked.holds(one.last if checks > 1 else one.alone) for one in run] for run in gates]
    keys = [[(one.partition, one.baseline) for one in run] for run in gates]
    share = float(np.mean([np.mean(run) for run in said]))
    trials = trials_of(share, spread_of_share(said, keys), len(gates))
    low, high = exact_interval(share, trials)
    limited = checks > 1 or asked.what == FALSE_ALARM
    subject = asked.condition.text.removeprefix(f"{MAX_REGRESSION} ")
    return Row(
        load, asked.pool, subject, asked.what, checks, sum(map(len, gates)), len(gates), trials,
        share, low, high, asked.limit if limited else math.nan, asked.at_least,
    )  # fmt: skip


def spread_of_share(
    said: Sequence[Sequence[bool]], baselines: Sequence[Sequence[tuple[int, int]]]
) -> float:
    """The variance of the share of gates that say something, by judged run and baseline: that
    between judged runs, over their number, and that between baselines that share no run (one
    partition), over theirs. Gates of a run, and gates by a baseline, go together."""
    of_run = [float(np.mean(run)) for run in said]
    by_baseline: dict[tuple[int, int], list[bool]] = {}
    for run, keys in zip(said, baselines, strict=True):
        for says, key in zip(run, keys, strict=True):
            by_baseline.setdefault(key, []).append(says)
    between = []
    for partition in {partition for partition, _ in by_baseline}:
        shares = [float(np.mean(v)) for key, v in by_baseline.items() if key[0] == partition]
        between.append(float(np.var(shares, ddof=1)) / len(shares) if len(shares) > 1 else 0.0)
    own = float(np.var(of_run, ddof=1)) / len(of_run) if len(of_run) > 1 else 0.0
    return own + float(np.mean(between))


def trials_of(share: float, variance: float, runs: int) -> int:
    """How many independent trials have this variance of the share: at most one a run, which it is
    where all gates say the same."""
    if not variance > 0:
        return runs
    return max(1, min(runs, math.floor(share * (1 - share) / variance)))


def exact_interval(share: float, trials: int, miss: float = 0.05) -> tuple[float, float]:
    """The 95 % interval of a share of so many trials (Clopper and Pearson 1934); of a count that is
    not whole, the wider one."""
    fewest = math.floor(share * trials + 1e-9)
    most = math.ceil(share * trials - 1e-9)
    low = _solve(lambda p: _at_least(fewest, trials, p) - miss / 2) if fewest else 0.0
    high = 1.0
    if most < trials:
        high = _solve(lambda p: _at_least(most + 1, trials, p) - 1 + miss / 2)
    return low, high


def _at_least(count: int, trials: int, p: float) -> float:
    return sum(
        math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(count, trials + 1)
    )


def _solve(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def show(rows: Sequence[Row], pools: Pools, console: Console) -> None:
    """The table for people."""
    for checks, title in ((CHECKS, f"Gates of up to {CHECKS} runs, as gate.sh"), (1, "Runs alone")):
        table = Table(title=title)
        for heading in ("load", "pool", "gate", "says"):
            table.add_column(heading)
        for heading in ("share", "95 %", "limit", "gates", "runs", "trials"):
            table.add_column(heading, justify="right")
        for row in rows:
            if row.checks != checks:
                continue
            share = f"{row.share:.1%}" if row.holds else f"[red]✗ {row.share:.1%}[/]"
            limit = f"{'≥' if row.at_least else '≤'} {row.limit:.0%}"
            limit = "" if math.isnan(row.limit) else limit
            ends = f"{row.low:.1%} to {row.high:.1%}"
            numbers = (share, ends, limit, f"{row.gates}", f"{row.runs}", f"{row.trials}")
            table.add_row(row.load, row.pool, row.gate, row.what, *numbers)
        console.print(table)
    for (load, pool), runs in pools.items():
        slower = slower_by(runs, pools[load, UNCHANGED], pool)
        console.print(f"{load}, {pool}: {spread_of(runs)}{slower}", highlight=False, soft_wrap=True)
    limited = [row for row in rows if not math.isnan(row.limit)]
    console.print(f"{sum(row.holds for row in limited)} of {len(limited)} limits hold")


def spread_of(runs: Sequence[Baseline]) -> str:
    """How long the steps of a pool's runs are, and by how much runs differ."""
    if not runs:
        return "none"
    series = [one.runs[0] for one in runs]
    means = np.array([float(np.median(run.columns["length_s"])) for run in series])
    spread = means.std(ddof=1) / means.mean() if len(means) > 1 else math.nan
    return (
        f"{len(runs)} runs of {min(run.size for run in series)} steps or more, "
        f"{1000 * means.mean():.1f} ms a step (median), runs differ by {spread:.2%} (sd)"
    )


def slower_by(runs: Sequence[Baseline], unchanged: Sequence[Baseline], pool: str) -> str:
    """By how much longer a pool's stage takes than in the unchanged runs: what was planted."""
    if pool not in STAGE or not runs or not unchanged:
        return ""
    took, usual = (
        np.mean([np.median(one.runs[0].columns[f"{m.BUSY}{STAGE[pool]}"]) for one in side])
        for side in (runs, unchanged)
    )
    return f", {STAGE[pool]} takes {took / usual - 1:.1%} longer"


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
        plain = [
            {**asdict(row), "limit": None if math.isnan(row.limit) else row.limit,
             "holds": row.holds}
            for row in rows
        ]  # fmt: skip
        click.echo(json.dumps({"load": os.getloadavg(), "rows": plain}, indent=1))
    else:
        show(rows, pools, Console(width=120))
    sys.exit(0 if all(row.holds for row in rows) else 1)


if __name__ == "__main__":
    main()
