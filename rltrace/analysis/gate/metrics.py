"""What a gate can hold a run to: names, units, which way is worse, and how each is computed.

A metric is a rate of sums over the steps (`of` over `per`: useful tokens over seconds) or a
quantile: over the steps (`step.p95`), or over samples (`lag.p99`). The columns are those of
`rltrace.analysis.gate.series`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rltrace.trace.errors import WrongUsage
from rltrace.trace.vocabulary import Stage, word

LENGTH, STEPS, DEVICES = "length_s", "steps", "devices"
USEFUL, TRAINED, GENERATED = "useful_tokens", "trained_tokens", "generated_tokens"
SAMPLES, DECIDED = "generated_samples", "decided_tokens"
BUSY, EXPOSED, LAG = "busy.", "exposed.", "lag."
SYNC_S, SYNC_BYTES, SYNCS = "sync_s", "sync_bytes", "syncs"
REWARD, ESS = "reward", "ess"

HIGHER, LOWER = "higher", "lower"


@dataclass(frozen=True)
class Metric:
    """One figure of a run. `better` is "higher" or "lower". `quantile` is 0 to 1, None for a rate.
    `scale` turns `of` / `per` into `unit`. `work` is the column by which the figure is normalised
    where the work of a step drifted (empty: it is none that work changes)."""

    name: str
    unit: str
    better: str
    of: str
    per: str
    says: str
    quantile: float | None = None
    scale: float = 1.0
    work: str = ""

    @property
    def has_stalls(self) -> bool:
        """Whether it is a mean of seconds, which a few stalled steps move."""
        return self.quantile is None and (is_seconds(self.of) or is_seconds(self.per))


_FIXED = (
    Metric(
        "goodput", "useful tokens/s", HIGHER, USEFUL, LENGTH,
        "response tokens trained on, with a signal, for each second",
    ),
    Metric(
        "goodput_per_gpu", "useful tokens/device-s", HIGHER, USEFUL, DEVICES,
        "the same for each second of each device (cores where the job holds no GPU)",
    ),
    Metric(
        "throughput", "generated tokens/s", HIGHER, GENERATED, LENGTH,
        "response tokens generated for each second",
    ),
    Metric(
        "step", "s", LOWER, LENGTH, STEPS,
        "seconds from the begin of a step to that of the next", work=GENERATED,
    ),
    Metric("lag", "policy versions", LOWER, LAG, STEPS, "mean lag of the samples trained on"),
    Metric("sync", "s", LOWER, SYNC_S, SYNCS, "seconds of a weight update"),
    Metric(
        "sync.gbytes", "GB", LOWER, SYNC_BYTES, SYNCS,
        "bytes that a weight update sends (10^9)", scale=1e-9,
    ),
    Metric(
        "sync.gbytes_per_s", "GB/s", HIGHER, SYNC_BYTES, SYNC_S,
        "rate of the weight updates (10^9 bytes)", scale=1e-9,
    ),
    Metric("reward", "reward", HIGHER, REWARD, STEPS, "mean verdict"),
    Metric("ess", "share", HIGHER, ESS, STEPS, "effective over drawn samples (ESS / N)"),
)  # fmt: skip

_QUANTILES = ("step", "lag")  # `stage.X` and `exposed.X` have them too
_FAMILIES = {
    "stage": (BUSY, "seconds a step in which the stage ran, hidden behind others or not"),
    "exposed": (EXPOSED, "seconds a step in which the step waited for the stage"),
}
_PATTERNS = (
    "step.pNN", "lag.pNN", "lag.max", "stage.X", "stage.X.pNN", "exposed.X", "exposed.X.pNN",
)  # fmt: skip
"""`X` stands for a stage, `pNN` for a percentile."""
_STAGES = tuple(word(stage) for stage in Stage if stage not in (Stage.STEP, Stage.WAIT))


def is_seconds(column: str) -> bool:
    """Whether a column is of seconds of steps, in which a stall of the machine shows."""
    return column in (LENGTH, DEVICES) or column.startswith((BUSY, EXPOSED))


def find_metric(name: str) -> Metric:
    """The metric of that name. Errors: `RltraceError` (wrong usage) for one that is none."""
    base, quantile = _quantile(name)
    fixed = {one.name: one for one in _FIXED}
    if name in fixed:
        return fixed[name]
    if base in _QUANTILES and quantile is not None:
        says = f"{name.rpartition('.')[2]} of: {fixed[base].says}"
        return replace(fixed[base], name=name, says=says, quantile=quantile)
    family, _, stage = base.partition(".")
    if family in _FAMILIES and stage in _STAGES:
        column, says = _FAMILIES[family]
        return Metric(name, "s", LOWER, column + stage, STEPS, says, quantile, work=GENERATED)
    names = ", ".join((*fixed, *_PATTERNS))
    raise WrongUsage(f"{name!r} is no metric: {names} (X: {', '.join(_STAGES)})")


def _quantile(name: str) -> tuple[str, float | None]:
    """`step.p95` -> ("step", 0.95); a name without a percentile as it is."""
    if name.endswith(".max"):
        return name.removesuffix(".max"), 1.0
    found = re.fullmatch(r"(.+)\.p(\d{1,2}(?:\.\d+)?)", name)
    return (found[1], float(found[2]) / 100) if found else (name, None)
