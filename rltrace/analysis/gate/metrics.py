"""What a gate can hold a run to: names, units, which way is worse, and how each is computed.

A metric is a rate of sums over the steps (`of` over `per`: useful tokens over seconds) or a
quantile: over the steps (`step.p95`), or over samples (`lag.p99`). The columns are those of
`rltrace.analysis.gate.series`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from rltrace.trace.errors import WrongUsage, did_you_mean
from rltrace.trace.texts import packaged_toml
from rltrace.trace.vocabulary import Stage, word

LENGTH, STEPS, DEVICES = "length_s", "steps", "devices"
USEFUL, TRAINED, GENERATED = "useful_tokens", "trained_tokens", "generated_tokens"
SAMPLES, DECIDED = "generated_samples", "decided_tokens"
BUSY, EXPOSED, LAG = "busy.", "exposed.", "lag."
SYNC_S, SYNC_BYTES, SYNCS = "sync_s", "sync_bytes", "syncs"
REWARD, ESS = "reward", "ess"

HIGHER = "higher"

_FILE = "analysis/gate/data/metrics.toml"


@dataclass(frozen=True)
class Metric:
    """One figure of a run, an entry of `data/metrics.toml`, whose keys are explained there.
    `quantile` is 0 to 1, None for a rate."""

    name: str
    of: str
    per: str
    unit: str = ""
    better: str = HIGHER
    says: str = ""
    quantile: float | None = None
    scale: float = 1.0
    work: str = ""

    @property
    def has_stalls(self) -> bool:
        """Whether it is a mean of seconds, which a few stalled steps move."""
        return self.quantile is None and (is_seconds(self.of) or is_seconds(self.per))


@cache
def metrics_of(kind: str) -> Mapping[str, Metric]:
    """By name those of a kind: "metric", "family" (of each stage), "factor" (of goodput), "work"
    (what a step did)."""
    return {entry["name"]: Metric(**entry) for entry in packaged_toml(_FILE)[kind]}


_QUANTILES = ("step", "lag")  # `stage.X` and `exposed.X` have them too
STAGES = {word(stage): stage for stage in Stage if stage not in (Stage.STEP, Stage.WAIT)}


def is_seconds(column: str) -> bool:
    """Whether a column is of seconds of steps, in which a stall of the machine shows."""
    return column in (LENGTH, DEVICES) or column.startswith((BUSY, EXPOSED))


def find_metric(name: str) -> Metric:
    """The metric of that name. Errors: `RltraceError` (wrong usage) for one that is none."""
    base, quantile = _quantile(name)
    fixed, families = metrics_of("metric"), metrics_of("family")
    if name in fixed:
        return fixed[name]
    if base in _QUANTILES and quantile is not None:
        says = f"{name.rpartition('.')[2]} of: {fixed[base].says}"
        return replace(fixed[base], name=name, says=says, quantile=quantile)
    family, _, stage = base.partition(".")
    if family in families and stage in STAGES:
        of = families[family].of + stage
        return replace(families[family], name=name, of=of, quantile=quantile)
    patterns = packaged_toml(_FILE)["patterns"]
    every = [f"{one}.{stage}" for one in families for stage in STAGES]
    near = did_you_mean(name, *fixed, *every)
    names = ", ".join((*fixed, *patterns))
    raise WrongUsage(f"{name!r} is no metric{near}: {names} (X: {', '.join(STAGES)})")


def _quantile(name: str) -> tuple[str, float | None]:
    """`step.p95` -> ("step", 0.95); a name without a percentile as it is."""
    if name.endswith(".max"):
        return name.removesuffix(".max"), 1.0
    found = re.fullmatch(r"(.+)\.p(\d{1,2}(?:\.\d+)?)", name)
    return (found[1], float(found[2]) / 100) if found else (name, None)
