"""What a gate holds runs to, and its answer: metrics, conditions, findings.

A metric is a rate of sums over the steps (`of` over `per`: useful tokens over seconds) or a
quantile: over the steps (`step.p95`), or over samples (`lag.p99`). The columns are those of
`rltrace.analysis.gate.paired_steps`.

A maximal regression is a share by which the figure may get worse than the baseline's: a rate may
fall to (1 - share) of it, seconds may grow to (1 + share) of it. A minimum or maximum is a bound
of this run's own figure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rltrace.analysis.stats.confidence_interval import UNKNOWN, Interval
from rltrace.analysis.walls.wall import wall_names
from rltrace.analysis.whatif.workload import number_of
from rltrace.trace.errors import ANSWER_IS_NO, CANNOT_TELL, OK, WrongUsage, did_you_mean
from rltrace.trace.read.stated_tables import checked, refuse
from rltrace.trace.untrusted_files import packaged_toml
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
class GateMetric:
    """An entry of `data/metrics.toml`, which explains it. `quantile` is 0 to 1, None for a rate."""

    name: str
    of: str
    per: str
    unit: str = ""
    better: str = HIGHER
    says: str = ""
    quantile: float | None = None
    scale: float = 1.0
    work: str = ""


@cache
def metrics_of(kind: str) -> Mapping[str, GateMetric]:
    """By name: kinds are "metric", "family" (of each stage), "factor" (of goodput) and "work"."""
    return {entry["name"]: GateMetric(**entry) for entry in packaged_toml(_FILE)[kind]}


_QUANTILES = ("step", "lag")  # `stage.X` and `exposed.X` have them too
STAGES = {word(stage): stage for stage in Stage if stage not in (Stage.STEP, Stage.WAIT)}


def is_seconds(column: str) -> bool:
    """Whether a column is of seconds of steps, in which a stall of the machine shows."""
    return column in (LENGTH, DEVICES) or column.startswith((BUSY, EXPOSED))


def find_metric(name: str) -> GateMetric:
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
    near = did_you_mean(name, *fixed, *(f"{one}.{stage}" for one in families for stage in STAGES))
    names = ", ".join((*fixed, *packaged_toml(_FILE)["patterns"]))
    raise WrongUsage(f"{name!r} is no metric{near}: {names} (X: {', '.join(STAGES)})")


def _quantile(name: str) -> tuple[str, float | None]:
    """`step.p95` -> ("step", 0.95); a name without a percentile as it is."""
    if name.endswith(".max"):
        return name.removesuffix(".max"), 1.0
    found = re.fullmatch(r"(.+)\.p(\d{1,2}(?:\.\d+)?)", name)
    return (found[1], float(found[2]) / 100) if found else (name, None)


# --- what a user states: `goodput=3%`, `lag.p99=4`, the wall

MAX_REGRESSION, MINIMUM, MAXIMUM = "max-regression", "min", "max"
WALL = "wall"


@dataclass(frozen=True)
class Condition:
    """`subject` is a metric's name, or a wall's. `limit` is a share for a maximal regression
    (0.03: 3 %), a bound in the metric's unit for a minimum or maximum, NaN for a wall."""

    kind: str
    subject: str
    limit: float = math.nan

    @property
    def text(self) -> str:
        """As a user would write it: `max-regression goodput=3%`, `wall rollout`."""
        limit = {MINIMUM: f"={self.limit:g}", MAXIMUM: f"={self.limit:g}"}
        limit[MAX_REGRESSION] = f"={100 * self.limit:g}%"
        return f"{self.kind} {self.subject}{limit.get(self.kind, '')}"


def parse_condition(kind: str, text: str) -> Condition:
    """Of one option, e.g. `("max-regression", "goodput=3%")`, `("wall", "rollout")`."""
    if kind == WALL:
        return Condition(WALL, _wall(text))
    name, equals, value = text.partition("=")
    if not equals:
        example = "goodput=3%" if kind == MAX_REGRESSION else "lag.p99=4"
        raise WrongUsage(f"--{kind} takes METRIC=LIMIT, as in {example}, and not {text!r}")
    metric = find_metric(name.strip())
    return Condition(kind, metric.name, _limit(kind, metric.name, value.strip()))


_LIMITS = {"*": "said"}  # by metric
_TABLE = {"baseline": "text", WALL: "text", MAX_REGRESSION: _LIMITS, MINIMUM: _LIMITS,
          MAXIMUM: _LIMITS}  # fmt: skip


def stated_in(table: Mapping[str, Any]) -> tuple[tuple[Condition, ...], str | None]:
    """The conditions, and the path of the baseline, of a table of a TOML file: `max-regression`,
    `min` and `max` are tables of limits by metric, `wall` and `baseline` texts; dashes and
    underscores are the same. Errors: `RltraceError` (wrong usage)."""
    values = {key.replace("_", "-"): value for key, value in table.items()}
    if len(values) < len(table):
        refuse("", "a kind of condition stands there twice, with a dash and with an underscore")
    found = checked(_TABLE, values, "")
    baseline, wall = found.pop("baseline", None), found.pop(WALL, None)
    told = [(kind, f"{name}={limit}") for kind, of in found.items() for name, limit in of.items()]
    told += [] if wall is None else [(WALL, wall)]
    return tuple(parse_condition(*one) for one in told), baseline


def _limit(kind: str, name: str, text: str) -> float:
    percent, value = text.endswith("%"), number_of(text.removesuffix("%"))
    if not math.isfinite(value):
        raise WrongUsage(f"{text!r} is no number to limit {name} by")
    wanted = ""
    if kind == MAX_REGRESSION and not percent:
        wanted = f"a percentage, as in {name}=3%"
    elif kind == MAX_REGRESSION and not 0 < value < 100:
        wanted = "more than 0 and less than 100 %"
    elif kind != MAX_REGRESSION and percent:
        wanted = "a number in the metric's unit"
    elif kind != MAX_REGRESSION and value < 0 and name != REWARD:
        wanted = "a number that is not negative"
    if wanted:
        raise WrongUsage(f"--{kind} {name} takes {wanted}, and not {text!r}")
    return value / 100 if percent else value


def _wall(text: str) -> str:
    plain = text.strip().lower()
    old: dict[str, str] = packaged_toml(_FILE)["old_walls"]
    names = {name.lower(): name for name in wall_names()} | old
    begun = {name for words, name in names.items() if plain and words.startswith(plain)}
    if plain not in names and len(begun) != 1:
        near = did_you_mean(plain, *wall_names())
        raise WrongUsage(f"{text!r} is no wall{near}: known are {', '.join(wall_names())}")
    return names[plain] if plain in names else begun.pop()


PASS, REGRESSION, UNSURE = "pass", "regression", "cannot tell"


@dataclass(frozen=True)
class StageChange:
    """What a stage (or "wait", "untraced", "between steps") did to the step: exposed seconds a step
    in the baseline and the run, and what is between them, as a share of the baseline's step, too
    (0.04: the step is 4 % longer by it)."""

    name: str
    before_s: float
    after_s: float
    difference_s: Interval
    difference_share: Interval


@dataclass(frozen=True)
class FactorChange:
    """A factor of goodput over the settled steps; `ratio` is run over baseline. `once`: it is
    measured once a run, so that nothing tells how much of its change is chance."""

    name: str
    before: float
    after: float
    ratio: Interval
    once: bool = False


@dataclass(frozen=True)
class Drift:
    """A property of a step's work, not its speed; `ratio` is run over baseline. `changed`: the work
    surely differs in it, by more than 2 %."""

    name: str
    before: float
    after: float
    ratio: Interval
    changed: bool


@dataclass(frozen=True)
class Finding:
    """A condition and what became of it: "pass", "regression" or "cannot tell", and why.

    `value` and `baseline` are in `unit` (NaN: unknown, or of no baseline). `ratio` is run over
    baseline; `worse_share` is the same change as a share for the worse, 0.05 for 5 % longer steps
    or 5 % less goodput, as `limit` is (negative: better). `p_value` is that of "not worse than the
    baseline at all", `p_adjusted` after Holm's correction for all conditions; NaN where none is
    tested. `normalised` says what the work of the two was made equal by (empty: nothing). Where it
    cannot be told, `more_steps` and `more_runs` would tell if the noise stays as it is (None: no
    number of them, or not known); baseline runs are `more_baselines`."""

    condition: Condition
    outcome: str
    because: str
    unit: str = ""
    value: float = math.nan
    baseline: float = math.nan
    ratio: Interval = UNKNOWN
    worse_share: Interval = UNKNOWN
    limit: float = math.nan
    p_value: float = math.nan
    p_adjusted: float = math.nan
    normalised: str = ""
    more_steps: int | None = None
    more_runs: int | None = None
    more_baselines: int | None = None
    stage: StageChange | None = None
    factor: FactorChange | None = None


@dataclass(frozen=True)
class Judgement:
    """All findings, in the order of the conditions. `steps` are how many settled steps each run
    has, `warmup` how many before them were left out. `paired`: the same step numbers were compared.
    `notes` are sentences for the reader, `alpha` is the false-alarm rate over all conditions.
    `alarms` has a sentence for each judged run with an alarm, which never passes."""

    findings: tuple[Finding, ...]
    steps: tuple[int, ...]
    baseline_steps: tuple[int, ...]
    warmup: tuple[int, ...]
    baseline_warmup: tuple[int, ...]
    paired: bool
    stages: tuple[StageChange, ...]
    factors: tuple[FactorChange, ...]
    drift: tuple[Drift, ...]
    notes: tuple[str, ...]
    alpha: float
    alarms: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """A regression of any, or a run with an alarm, is one of all; then what cannot be told."""
        if self.alarms:
            return REGRESSION
        outcomes = {finding.outcome for finding in self.findings}
        return next((one for one in (REGRESSION, UNSURE) if one in outcomes), PASS)

    @property
    def exit_code(self) -> int:
        return {PASS: OK, REGRESSION: ANSWER_IS_NO, UNSURE: CANNOT_TELL}[self.outcome]
