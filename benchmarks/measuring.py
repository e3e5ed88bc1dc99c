"""What the benchmarks share: interleaved rounds, spread, bootstrap intervals, and the verdict.

Figures are taken on machines that do other work too. So whatever is compared takes turns within a
few milliseconds, in an order that reverses every round; CPU time is read, not the wall clock; and
what is printed is a median with its spread, beside the limit that it is held to.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

Measure = Callable[[], float]


@dataclass(frozen=True)
class Spread:
    """The middle of some measurements and how far they lie apart."""

    median: float
    low: float  # 10th percentile
    high: float  # 90th percentile
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Median, 10th and 90th percentile of measurements."""
    low, median, high = np.percentile(values, [10, 50, 90])
    return Spread(float(median), float(low), float(high), len(values))


def take_turns(measures: Mapping[str, Measure], rounds: int) -> dict[str, list[float]]:
    """Calls every measure once a round, forwards and backwards in turn (A B B A)."""
    taken: dict[str, list[float]] = {name: [] for name in measures}
    for nth in range(rounds):
        for name in list(measures)[:: -1 if nth % 2 else 1]:
            taken[name].append(measures[name]())
    return taken


def in_memory(folder: Path) -> int:
    """Bytes that the files below a folder take: where that is in shared memory, of it."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def cpu_ns_each(run: Callable[[int], object], count: int) -> Measure:
    """A measure of CPU ns of this thread for one of `count` things that `run(count)` does."""

    def measure() -> float:
        start = time.thread_time_ns()
        run(count)
        return (time.thread_time_ns() - start) / count

    return measure


def child_cpu_ms(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """CPU milliseconds, user and system, of one child process that ends well."""
    child = subprocess.Popen(command, env=dict(environment), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{command} ended with exit code {child.returncode}")
    return (usage.ru_utime + usage.ru_stime) * 1000


Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""A figure of each row of a matrix. Shape (draws, values) to (draws,)."""


def medians(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of each row."""
    return np.median(rows, axis=-1)


def middle_means(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the middle 60 % of each row: deaf to outliers like the median, and less noisy."""
    count = rows.shape[-1]
    cut = count // 5
    return np.sort(rows, axis=-1)[..., cut : count - cut].mean(axis=-1)


def interval(
    values: Sequence[float] | NDArray[np.float64],
    level: float = 0.95,
    statistic: Statistic = medians,
    draws: int = 4000,
) -> tuple[float, float]:
    """Two-sided percentile bootstrap interval (Efron & Tibshirani 1993, section 13.3)."""
    data = np.asarray(values, np.float64)
    picks = np.random.default_rng(0).integers(0, len(data), (draws, len(data)))
    low, high = np.quantile(statistic(data[picks]), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


STUDENT_T = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""The 95 % quantile of Student's t distribution for 1, 2, ... degrees of freedom."""


def ratio_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of ratios, and its two-sided 90 % interval by Student's t: for a few pairs,
    where a bootstrap would be too narrow. The interval of one ratio has no ends."""
    logs = np.log(ratios)
    if len(logs) < 2:
        return float(np.exp(logs.mean())), 0.0, float("inf")
    t = STUDENT_T[min(len(logs) - 1, len(STUDENT_T)) - 1]
    middle, half = logs.mean(), t * logs.std(ddof=1) / np.sqrt(len(logs))
    return float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half))


@dataclass(frozen=True)
class Check:
    """A figure and the limit, if any, that it must not pass; `low` and `high` are its interval, or
    the 10th and 90th percentile of measurements."""

    what: str
    figure: float
    limit: float | None
    unit: str
    low: float | None = None
    high: float | None = None

    @classmethod
    def median(
        cls, what: str, values: Sequence[float], limit: float | None, unit: str = ""
    ) -> Check:
        """Of the median of some measurements."""
        found = spread(values)
        return cls(what, found.median, limit, unit, found.low, found.high)

    @property
    def holds(self) -> bool:
        """Whether the figure is within its limit; a figure that is no number is not."""
        return self.limit is None or self.figure <= self.limit


@dataclass
class Result:
    """What a benchmark found: a table of spreads, notes, and checks."""

    title: str
    unit: str
    rows: dict[str, Spread] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def finish(self, as_json: bool) -> int:
        """Prints everything; the exit code: 0 when every limit is kept, else 1."""
        if as_json:
            print(json.dumps(self._plain(), indent=1))
        else:
            self._show(Console())
        return 0 if all(check.holds for check in self.checks) else 1

    def _plain(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "unit": self.unit,
            "load": os.getloadavg(),
            "rows": {name: asdict(row) for name, row in self.rows.items()},
            "notes": self.notes,
            "checks": [{**asdict(check), "holds": check.holds} for check in self.checks],
        }

    def _show(self, console: Console) -> None:
        table = Table(title=f"{self.title} ({self.unit}; load {os.getloadavg()[0]:.1f})")
        table.add_column("")
        for heading in ("median", "10 %", "90 %", "rounds"):
            table.add_column(heading, justify="right")
        for name, row in self.rows.items():
            cells = [f"{x:,.1f}" for x in (row.median, row.low, row.high)]
            table.add_row(name, *cells, str(row.count))
        console.print(table)
        for name, note in self.notes.items():
            console.print(f"{name}: {note}", highlight=False)
        for check in self.checks:
            mark = "[green]kept[/]" if check.holds else "[red]MISSED[/]"
            limit = "none" if check.limit is None else f"{check.limit:.3g}"
            figure = f"{check.figure:.4g} {check.unit}, limit {limit}"
            console.print(f"{mark} {check.what}: {figure}", highlight=False)
