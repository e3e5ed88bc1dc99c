"""Published figures against what `rltrace plan` says from the workload's shape alone.

    python -m benchmarks.planned [--rounds 9] [--json]

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Check, Spread, spread
from rltrace.testing.inside.analysis import PlacementPlan as Placed
from rltrace.testing.inside.analysis import (
    PlanConstants,
    Pools,
    Tables,
    advise,
    binding,
    costed,
    longest_of_lognormal,
    merged,
    movement,
    place,
    plan,
    replay,
    spec_of,
    sweep,
)
from rltrace.testing.inside.analysis import data_sheets as shapes
from rltrace.testing.inside.analysis import plan_table as plan_constants_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = Path(__file__).parent / "planned"
MEDIAN_ERROR, WORST_FACTOR = 0.25, 2.0
ANSWER_S, SWEEP_S = 1.0, 20.0
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
        s = plan_constants_table()["log_deviation"].middle
        lengths["mean_tokens"] = uncut * longest_of_lognormal(1, s, lengths["cap_tokens"] / uncut)
    return place(Pools(spec_of(tables, one.get("what", "")), constants), one["placement"])


def _walls(placed: Placed) -> tuple[str, ...]:
    found = costed(placed.load)
    return binding(found) or (found[0].name,)


@dataclass(frozen=True)
class Taken:
    """Seconds of some rounds of the same work, by the clock and of the processor."""

    clock: Spread
    processor: Spread
    fastest_s: float
    limit_s: float

    @property
    def seconds(self) -> float:
        """What is held to the limit: the fastest round by the clock (in others the machine may have
        done other work), or the median of the processor, if that is more."""
        return max(self.fastest_s, self.processor.median)

    def says(self) -> str:
        """In words."""
        clock = self.clock
        return (
            f"{clock.median:.2f} s by the clock ({clock.low:.2f} to {clock.high:.2f}, fastest "
            f"{self.fastest_s:.2f}, {clock.count} rounds), {self.processor.median:.2f} s of the "
            f"processor; limit {self.limit_s:g} s"
        )


def speed(rounds: int) -> dict[str, Taken]:
    """What an answer and a sweep of 100 take, without Python's start."""
    tables: Tables = {
        "model": {"name": "Qwen2.5-32B"}, "gpus": {"kind": "32xH100"},
        "batch": {"prompts": 128, "group": 16},
        "lengths": {"mean_tokens": 6000, "cap_tokens": 32768, "variation": 1.0},
        "environment": {"latency_s": 8},
    }  # fmt: skip
    values = np.geomspace(500, 16000, 100).tolist()

    def answer() -> None:
        advise(plan(spec_of(tables, "")))

    def swept() -> None:
        points = sweep(tables, "mean_tokens", values, lambda changed: spec_of(changed, ""))
        assert not any(point.refused for point in points)

    return {
        "an answer": _taken(answer, rounds, ANSWER_S),
        "a sweep of 100": _taken(swept, 1, SWEEP_S),
    }


def _taken(work: Callable[[], None], rounds: int, limit_s: float) -> Taken:
    clock, processor = [], []
    for _ in range(rounds):
        replay.cache_clear()  # a person asks once
        start, used = time.perf_counter(), time.process_time()
        work()
        clock.append(time.perf_counter() - start)
        processor.append(time.process_time() - used)
    return Taken(spread(clock), spread(processor), min(clock), limit_s)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--speed/--no-speed", "timed", default=True, help="Time answers and a sweep, too.")
@click.option("--rounds", default=9, type=click.IntRange(min=1), help="Answers that are timed.")
def main(as_json: bool, timed: bool, rounds: int) -> None:
    """Predicted against published; exits 1 where they are too far apart, or an answer too slow."""
    found = list(rows())
    errors = np.abs([row.ratio - 1 for row in found])
    median, worst = float(np.median(errors)), max(row.factor for row in found)
    wrong = [row for row in found if not row.wall_is_right]
    taken = speed(rounds) if timed else {}
    checks = [
        Check("predictions of published rows, median error", median, MEDIAN_ERROR, ""),
        Check("the same, the worst factor", worst, WORST_FACTOR, ""),
        Check("the same, wrong walls", len(wrong), 0, ""),
        *(Check(f"plan: {name}", one.seconds, one.limit_s, "s") for name, one in taken.items()),
    ]
    if as_json:
        cases = [asdict(row) | {"ratio": row.ratio} for row in found]
        summary = {"median_error": median, "worst_factor": worst, "wrong_walls": len(wrong)}
        seconds = {name: asdict(one) for name, one in taken.items()}
        held = [asdict(check) | {"holds": check.holds} for check in checks]
        said = {"rows": cases, **summary, "seconds": seconds, "checks": held}
        print(json.dumps(said, indent=1))
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
        for name, one in taken.items():
            print(f"{name}: {one.says()}")
    sys.exit(0 if all(check.holds for check in checks) else 1)


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
