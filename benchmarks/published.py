"""Published breakdowns: what `rltrace whatif` says of the change, against what was measured.

    python -m benchmarks.published [--json]

Each file of benchmarks/published/ is a stages file (docs/reference/levers.md) with the step that
its authors measured after a change. Nothing is set row by row: what a file does not say comes from
the constants of `rltrace whatif`, which are the same for all and are listed below the table. Many
have their source in the same documents, so this shows that one set fits them all, not more; files
with `scored_only = true` were added after the model was done, and say how it does elsewhere.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from rltrace.testing.inside.analysis import predict, stated, table
from rltrace.testing.inside.analysis import predict_Estimate as Estimate

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = Path(__file__).parent / "published"
MEDIAN_ERROR, INSIDE_SHARE = 0.12, 0.85
_ALIKE = 0.02  # a gain of less is none


@dataclass(frozen=True)
class Row:
    """A case: seconds published after the change and predicted. `published_s` is NaN where they are
    not published; `moves_weights`: only how weights travel is changed."""

    case: str
    change: str
    source: str
    tag: str
    scored_only: bool
    moves_weights: bool
    before_s: float
    published_s: float
    low_s: float
    predicted_s: float
    high_s: float

    @property
    def error(self) -> float:
        """Predicted over published, minus 1."""
        return self.predicted_s / self.published_s - 1

    @property
    def inside(self) -> bool:
        """Whether the published value is in the range."""
        return self.low_s <= self.published_s <= self.high_s

    @property
    def inverted(self) -> bool:
        """Whether a change that made the job slower is predicted to make it faster, or the other
        way round: both by more than what is no gain."""
        said, true = (math.log(self.before_s / s) for s in (self.predicted_s, self.published_s))
        return said * true < 0 and min(abs(said), abs(true)) > _ALIKE


def rows() -> Iterator[Row]:
    """All cases."""
    for path in sorted(FILES.glob("*.toml")):
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        scored_only = tables.pop("scored_only", False)
        for published in tables["published"]:
            about = (
                tables["name"],
                published["what"],
                tables["source"],
                tables["tag"],
                scored_only,
                set(published.get("moves", ())) == {"sync"},
            )
            if "transition" in tables:
                yield _transition(about, tables["transition"], published)
            else:
                yield _step(about, tables, str(path), published)


def _step(about: Any, tables: Mapping[str, Any], path: str, published: Mapping[str, Any]) -> Row:
    source = stated(tables, path).workload
    measured = published.get("step_s", math.nan)
    found = predict(source, list(published["moves"].items()))
    if "speedup" in published:
        measured = found.before_s / published["speedup"]
    step = found.step_s
    if not published["moves"] and "step_s" in tables:  # it would be predicted from itself
        step = Estimate(math.nan, math.nan, math.nan)
    return Row(*about, found.before_s, measured, step.low, step.value, step.high)


def _transition(about: Any, given: Mapping[str, Any], published: Mapping[str, Any]) -> Row:
    devices, size = given["devices"], given["model_bytes"]
    seconds = []
    for ways, parts in product(given["training_ways"], given["generation_ways"]):
        before, after = (
            reshard_bytes(given[which], size, ways, 1, devices // ways, parts)
            for which in ("before", "after")
        )
        seconds.append(given["before_s"] * after / before)
    middle = float(np.exp(np.mean(np.log(seconds))))
    return Row(*about, given["before_s"], published["seconds"], min(seconds), middle, max(seconds))


def reshard_bytes(
    scheme: str,
    model_bytes: float,
    tensor: int,
    pipeline: int,
    data: int,
    tensor_gen: int = 1,
    pipeline_gen: int = 1,
) -> float:
    """Bytes that each device receives on the way from training to generation (HybridFlow, arXiv
    2409.19256, table 2). `scheme`: "all-gather" over all devices (DeepSpeed-Chat), "within
    replica" (HybridFlow-V), or "grouped" (HybridFlow: only what a device's group lacks)."""
    ways = tensor * pipeline
    if scheme == "all-gather":
        return model_bytes * (ways * data - 1) / (ways * data)
    if scheme == "within replica":
        return model_bytes * (ways - 1) / ways
    if scheme == "grouped":
        parts = tensor_gen * pipeline_gen
        return model_bytes * (ways - parts) / (parts * ways)
    raise ValueError(f"there is no scheme {scheme!r}")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(as_json: bool) -> None:
    """Predicted against published; exits 1 where they are too far apart."""
    found = list(rows())
    scores = scores_of(found)
    if as_json:
        more = ("error", "inside", "inverted")
        cases = [asdict(row) | {name: getattr(row, name) for name in more} for row in found]
        print(json.dumps({"rows": cases, **scores}, indent=1))
    else:
        _show(found, Console())
        for which, one in scores.items():
            print(
                f"{which}: median error {one['median_error']:.1%}, worst {one['worst_error']:.1%}, "
                f"inside the range {one['inside_share']:.0%}, inverted trends {one['inverted']}, "
                f"cases {one['cases']}"
            )
        print(f"limits: median error {MEDIAN_ERROR:.0%}, inside the range {INSIDE_SHARE:.0%}")
    sys.exit(not all(map(held, (scores["steps"], scores["weights"]))))


def scores_of(found: list[Row]) -> dict[str, dict[str, float]]:
    """By what is changed: who does what when (steps), or how weights travel. Published rates of one
    mechanism lie within a factor of ten, so of those only the range is held to anything."""
    parts = {
        "all": found,
        "steps": [row for row in found if not row.moves_weights],
        "steps, scored only": [r for r in found if r.scored_only and not r.moves_weights],
        "weights": [row for row in found if row.moves_weights],
    }
    scores = {name: score(part) for name, part in parts.items()}
    scores["weights"]["median_error"] = math.nan
    return scores


def held(of: Mapping[str, float]) -> bool:
    """Whether errors and ranges are as good as they must be; an error of NaN is held to nothing."""
    return not of["median_error"] > MEDIAN_ERROR and of["inside_share"] >= INSIDE_SHARE


def score(found: list[Row]) -> dict[str, float]:
    """How far off the rows are that can be scored (shares, but for counts), and how many of the
    published values lie in their ranges; NaN where there are none."""
    scored = [row for row in found if not math.isnan(row.error)]
    errors = [abs(row.error) for row in scored] or [math.nan]
    return {
        "cases": len(scored),
        "median_error": float(np.median(errors)),
        "worst_error": max(errors),
        "mean_error": float(np.mean([row.error for row in scored] or [math.nan])),
        "inside_share": sum(row.inside for row in scored) / max(1, len(scored)),
        "inverted": sum(row.inverted for row in scored),
    }


def _show(found: list[Row], console: Console) -> None:
    shown = Table("case", "change", "before, s", "published, s", "predicted, s", "error", "inside")
    for row in found:
        interval = f"{row.predicted_s:.4g} ({row.low_s:.4g} to {row.high_s:.4g})"
        shown.add_row(
            f"{row.case} [{row.tag}]".replace("[", "\\["),
            row.change,
            f"{row.before_s:.4g}",
            "" if math.isnan(row.published_s) else f"{row.published_s:.4g}",
            "" if math.isnan(row.predicted_s) else interval,
            "" if math.isnan(row.error) else f"{row.error:+.1%}",
            "" if math.isnan(row.error) else "yes" if row.inside else "no",
        )
    console.print(shown)
    console.print("Constants, the same for every row:", style="bold")
    for constant in table().values():
        console.print(f"  {constant.sentence()} [{constant.source}]", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
