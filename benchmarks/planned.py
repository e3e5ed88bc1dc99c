"""Published figures against what `rltrace plan` says from the workload's shape alone.

    python -m benchmarks.planned [--json]

Each file of benchmarks/planned/ is a source: the shape that it publishes, what had to be assumed
beside it (printed below the table), and its figures. Seconds are compared where it gives all
inputs; else ratios of two of its runs. Nothing is set row by row: constants are those of
`rltrace plan`, the same for all, and their sources are partly the same documents. Rows marked
"held out" were not looked at while the constants were set.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from rltrace.analysis.order_statistics import mean_of_lognormal
from rltrace.analysis.plan import shapes
from rltrace.analysis.plan.advice import advise
from rltrace.analysis.plan.constants import PlanConstants, constant
from rltrace.analysis.plan.costed_walls import costed
from rltrace.analysis.plan.placements import KINDS, Placed, Pools, place
from rltrace.analysis.plan.plan import plan
from rltrace.analysis.plan.reading import Tables, merged, spec_of
from rltrace.analysis.plan.sweep import asked, sweep
from rltrace.analysis.plan.weights import movement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = Path(__file__).parent / "planned"
MEDIAN_ERROR, WORST_FACTOR = 0.25, 2.0
ANSWER_S, SWEEP_S = 1.0, 20.0
_KIND = {kind.name: kind for kind in KINDS}
_SIDE = ("what", "placement", "staleness", "published", "published_s", "walls")


@dataclass(frozen=True)
class Row:
    """A figure as published and as predicted, in seconds (`unit` "s") or as a ratio ("x"), and the
    walls where they are published."""

    source: str
    what: str
    use: str
    tag: str
    unit: str
    published: float
    predicted: float
    published_walls: tuple[str, ...] = ()
    predicted_walls: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predicted / self.published

    @property
    def factor(self) -> float:
        """How far off, whichever way: 1 is exact."""
        return max(self.ratio, 1 / self.ratio)

    @property
    def wall_is_right(self) -> bool:
        """Whether a wall that binds is among those published."""
        right = set(self.published_walls)
        return not right or bool(right & set(self.predicted_walls))


def rows() -> Iterator[Row]:
    """All rows of all sources."""
    constants = PlanConstants()
    for path in sorted(FILES.glob("*.toml")):
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        about = tables["name"]
        use, tag = tables["use"], tables["tag"]
        base: Tables = {name: dict(values) for name, values in tables.get("workload", {}).items()}
        for one in tables.get("step", ()):
            placed = _placed(base, one, constants)
            yield Row(about, one["what"], use, tag, "s", one["published_s"], placed.step_s)
        for one in tables.get("ratio", ()):
            over = _placed(base, one["over"], constants)
            under = _placed(base, one["under"], constants)
            right = one.get("walls", one.get("under_walls", ()))
            found = _walls(over if "walls" in one else under) if right else ()
            ratio = over.step_s / under.step_s
            yield Row(
                about, one["what"], use, tag, "x", one["published"], ratio, tuple(right), found
            )
        for one in tables.get("sync", ()):
            moved = movement(
                one["mechanism"], shapes.by_name(one["model"]), constants, one["receivers"],
                one["bytes_each"],
            )  # fmt: skip
            what = f"{one['what']} ({one['mechanism']})"
            yield Row(about, what, use, tag, "s", one["published_s"], moved.seconds)


def _placed(base: Tables, one: Mapping[str, Any], constants: PlanConstants) -> Placed:
    changes: Tables = {name: dict(values) for name, values in one.items() if name not in _SIDE}
    changes[""] = {"staleness": one.get("staleness", 1)}
    tables = merged(base, changes)
    lengths = tables["lengths"]
    uncut = lengths.pop("uncut_tokens", None)
    if uncut is not None:
        s = constant("log_deviation").middle
        lengths["mean_tokens"] = uncut * mean_of_lognormal(s, lengths["cap_tokens"] / uncut)
    return place(Pools(spec_of(tables, one.get("what", "")), constants), _KIND[one["placement"]])


def _walls(placed: Placed) -> tuple[str, ...]:
    found = costed(placed.parts)
    names = [wall.name for wall in found.binding]
    return tuple(names or [found.walls[0].name])


def speed() -> tuple[float, float]:
    """Seconds of the processor for one answer and for a sweep of 100, without Python's start: on a
    machine with other work the clock on the wall tells of that."""
    tables: Tables = {
        "model": {"name": "Qwen2.5-32B"}, "gpus": {"kind": "32xH100"},
        "batch": {"prompts": 128, "group": 16},
        "lengths": {"mean_tokens": 6000, "cap_tokens": 32768, "variation": 1.0},
        "environment": {"latency_s": 8},
    }  # fmt: skip
    spec = spec_of(tables, "")
    start = time.process_time()
    advise(plan(spec))
    answered = time.process_time()
    points = sweep(spec, *asked("mean_tokens=500..16000:100"))
    ended = time.process_time()
    assert len(points) == 100
    return answered - start, ended - answered


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--speed/--no-speed", "timed", default=True, help="Time an answer and a sweep, too.")
def main(as_json: bool, timed: bool) -> None:
    """Predicted against published; exits 1 where they are too far apart, or an answer too slow."""
    found = list(rows())
    errors = np.abs([row.ratio - 1 for row in found])
    median, worst = float(np.median(errors)), max(row.factor for row in found)
    wrong = [row for row in found if not row.wall_is_right]
    answer_s, sweep_s = speed() if timed else (0.0, 0.0)
    good = median <= MEDIAN_ERROR and worst <= WORST_FACTOR and not wrong
    good = good and answer_s <= ANSWER_S and sweep_s <= SWEEP_S
    if as_json:
        cases = [asdict(row) | {"ratio": row.ratio} for row in found]
        summary = {"median_error": median, "worst_factor": worst, "wrong_walls": len(wrong)}
        times = {"answer_s": answer_s, "sweep_of_100_s": sweep_s} if timed else {}
        print(json.dumps({"rows": cases, **summary, **times}, indent=1))
    else:
        _show(found, Console())
        for use in dict.fromkeys(row.use for row in found):
            own = [row for row in found if row.use == use]
            off = float(np.median([abs(row.ratio - 1) for row in own]))
            print(f"{use}: {len(own)} rows, median error {off:.1%}, worst "
                  f"{max(row.factor for row in own):.2f}x")  # fmt: skip
        print(
            f"all: {len(found)} rows, median error {median:.1%} (limit {MEDIAN_ERROR:.0%}), worst "
            f"{worst:.2f}x (limit {WORST_FACTOR:g}x), wrong walls {len(wrong)} of "
            f"{sum(bool(row.published_walls) for row in found)}"
        )
        if timed:
            print(
                f"processor time: an answer {answer_s:.2f} s (limit {ANSWER_S:g} s), a sweep of "
                f"100 {sweep_s:.1f} s (limit {SWEEP_S:g} s)"
            )
    sys.exit(0 if good else 1)


def _show(found: list[Row], console: Console) -> None:
    for source in dict.fromkeys(row.source for row in found):
        own = [row for row in found if row.source == source]
        shown = Table("", "published", "predicted", "ratio", "wall", title_justify="left",
                      title=f"{source} ({own[0].tag}, {own[0].use})")  # fmt: skip
        for row in own:
            wall = ", ".join(row.predicted_walls) + ("" if row.wall_is_right else "  WRONG")
            unit = " s" if row.unit == "s" else "x"
            shown.add_row(
                row.what, f"{row.published:.4g}{unit}", f"{row.predicted:.4g}{unit}",
                f"{row.ratio:.2f}", wall,
            )  # fmt: skip
        console.print(shown)
        for path in sorted(FILES.glob("*.toml")):
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
            if tables["name"] == source:
                for line in tables["assumed"]:
                    console.print(f"  assumed: {line}", markup=False)
                console.print(f"  source: {tables['source']}\n", markup=False)


if __name__ == "__main__":
    main()
