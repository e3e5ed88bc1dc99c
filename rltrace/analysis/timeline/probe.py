"""What delaying the stages of a run did to its steps.

The probe (`rltrace.hooks.probe.delays`) stretches a stage's work by a known part in steps drawn at
random, and the length of a step is regressed on these dilations. To stretch a stage by a small part
f lengthens the step by f times the seconds of that stage on the critical path, whatever overlaps
with what; so the coefficient *is* those seconds. Over the stage's time it is its exposed part (1:
it binds all the time, 0: it is hidden), over the step its share. Where work goes on across the ends
of steps, effects on `LAGS` further steps are added up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import UNKNOWN, Floats, Interval, fit
from rltrace.analysis.timeline.stages import StageRow
from rltrace.analysis.timeline.steps import Steps
from rltrace.analysis.walls.wall import ALIKE
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.vocabulary import LONGEST, PLANNED, SLEPT, WORKED, Stage

HALF_WIDTH = 0.15  # of the interval of an exposed part: how sharp an answer is asked for
LAGS = 2  # steps after a dosed one in which it may still act, where work crosses their ends
IN_FULL = 0.8  # of a stage's doses: where less was given, some work may not have been delayed
FEWEST_DOSED = 3  # steps of a stage without which its noise is unknown
EXPOSED, PATH = "exposed time", "critical path"
"""What the computed figures of a stage rest on."""

_CROSSED = 0.1  # work goes on across more than this part of the ends of steps
_ROWS_A_COLUMN = 6
_OUTLIER = 8.0  # in deviations from the median: such a step is none of the usual ones


@dataclass(frozen=True)
class ProbedStage:
    """A stage that was delayed. Shares are measured (of `on_path_s`, seconds a step), or
    `computed_`. `dosed_steps` of the `steps` used got a dose, of `dose_s` seconds in the mean over
    all processes together; `given_share` is by how much its time grew over by how much it was to.
    `because` says why nothing is known."""

    stage: Stage
    name: str
    symbol: str
    steps: int
    dosed_steps: int
    dose_s: float
    given_share: float
    on_path_s: Interval
    stage_exposed_share: Interval
    share: Interval
    computed_stage_exposed_share: float
    computed_share: float
    because: str

    @property
    def tells(self) -> bool:
        """Whether it can be held against what was computed: not where doses were given in part."""
        known = self.share.known and not math.isnan(self.computed_share)
        return known and self.given_share >= IN_FULL

    @property
    def contradicts(self) -> bool:
        """Whether the computed share is outside of the interval, and far from its middle."""
        far = abs(self.share.value - self.computed_share) >= ALIKE
        return self.tells and far and not self.share.contains(self.computed_share)

    @property
    def agrees(self) -> bool:
        """Whether a sharp interval holds the computed share, or nearly."""
        return self.tells and not self.contradicts and self.share.half_width <= HALF_WIDTH

    def more_steps_for(self, half_width: float) -> int | None:
        """How many more steps an interval of this half-width takes, by the root of the steps."""
        if not self.stage_exposed_share.known:
            return None
        ratio = self.stage_exposed_share.half_width / half_width
        return max(0, math.ceil(self.steps * (ratio * ratio - 1) - 1e-6))


@dataclass(frozen=True)
class Probe:
    """Doses of `dose_share` (seconds slept for one of work) were to take `budget_share` of the
    job's time at most, and took `spent_share`. `step_s` is a step without doses; `steps` were used,
    without outliers and those in which the budget allowed no dose. `not_seen` are stages without
    work."""

    stages: tuple[ProbedStage, ...]
    dose_share: float
    budget_share: float
    spent_share: Interval
    seed: int
    steps: int
    outlier_steps: int
    refused_steps: int
    lag_steps: int
    step_s: float
    not_seen: tuple[str, ...]
    computed_by: str = EXPOSED


def find_probe(analysis: RunAnalysis) -> Probe | None:
    """None where the run was not probed."""
    run, steps, breakdown = analysis.run, analysis.steps, analysis.breakdown
    design = (run.meta.get("settings") or {}).get("probe")
    if not isinstance(design, dict):
        return None
    steady = list(steps.steady)
    doses = Doses(run, steps)
    asked = design.get("stages") or ()
    probed = [row for row in analysis.stages if row.name in asked and row.tau_s.mean > 0]
    lags = LAGS if work_crosses_steps(run, steps) else 0
    whole = [place for place in steady if not doses.refused[place]]
    used, outliers = usable_steps(breakdown.steps_s, whole, lags)
    dilations: dict[str, Floats] = {}
    work: list[Floats] = []
    given = {row.name: doses.given(row.name) for row in probed}
    for row in probed:
        name, tau_s, dilation = row.name, breakdown.tau_s[:, row.stage], doses.of(row.name, PLANNED)
        if not given[name] > 0 or not used:
            continue
        if not lags:  # each step has work of its own
            dilation = dilation * _amount(doses, name, tau_s, used)
            stretch = _stretch(dilation, doses.work(name), tau_s, used)
            given[name] = given[name] if math.isnan(stretch) else stretch
            work += doses.work(name)
        dilations[name] = dilation * given[name]
    found = regress(breakdown.steps_s, dilations, work, used, lags)
    return Probe(
        stages=tuple(_stage(analysis, row, doses, given[row.name], found, used) for row in probed),
        dose_share=float(design.get("dose", math.nan)),
        budget_share=float(design.get("budget", math.nan)),
        spent_share=found.spent,
        seed=int(design.get("seed", -1)),
        steps=len(used),
        outlier_steps=outliers,
        refused_steps=int(doses.refused[steady].sum()),
        lag_steps=lags,
        step_s=found.step_s,
        not_seen=tuple(name for name in asked if name not in given),
        computed_by=EXPOSED if analysis.followed is None else PATH,
    )


def _amount(doses: Doses, name: str, tau_s: Floats, used: list[int]) -> Floats:
    """How much of a stage each step had (mean of those used: 1): by the seconds worked, or by the
    longest call where that goes better with the stage's time in steps without a dose."""
    plain = [place for place in used if not doses.of(name, PLANNED)[place]]

    def likeness(seconds: Floats) -> float:
        one, other = tau_s[plain], seconds[plain]
        if len(plain) < 2 or not one.std() > 0 or not other.std() > 0:
            return -1.0
        return float(np.corrcoef(one, other)[0, 1])

    seconds = max(doses.work(name), key=likeness)
    mean_s = float(seconds[used].mean())
    return seconds / mean_s if mean_s > 0 else np.ones(len(seconds))


def _stretch(dilation: Floats, work: Iterable[Floats], tau_s: Floats, used: list[int]) -> float:
    """By how much a stage's time grew, over by how much it was to (above 1: a call and the one that
    waits for it in another process were both delayed); NaN where that is lost in noise."""
    columns = [seconds[used] for seconds in work if seconds[used].std() > 1e-9]
    x = np.stack([dilation[used], np.ones(len(used)), *(c - c.mean() for c in columns)], axis=1)
    found = fit(x, tau_s[used])
    if found is None:
        return math.nan
    grown, plain = (found.combined(weights) for weights in np.eye(2, x.shape[1]))
    is_told = grown.low > grown.half_width and plain.value > 0
    return grown.value / plain.value if is_told else math.nan


def _stage(
    run: RunAnalysis, row: StageRow, doses: Doses, given: float, of: Regression, used: list[int]
) -> ProbedStage:
    breakdown, steady = run.breakdown, list(run.steps.steady)
    computed_s = breakdown.exposed_s[steady, row.stage]
    if run.followed is not None:
        computed_s = run.followed.seconds_of(row.stage, steady)
    dosed = doses.of(row.name, PLANNED)[used] > 0
    tau_s = breakdown.tau_s[used, row.stage]
    on_path_s = of.on_path_s.get(row.name, UNKNOWN)
    because = ""
    if dosed.sum() < FEWEST_DOSED:
        because = f"{dosed.sum()} steps with a dose of it are too few"
        on_path_s = UNKNOWN
    elif not given > 0:
        because = "its work is too short to be delayed"
    elif not on_path_s.known:
        because = f"{len(steady)} steady steps are too few"
    worked_s = doses.work(row.name)[0][used]
    plain = ~dosed & (worked_s > 0)  # steps without a dose, but for the work of all of them
    plain_s = tau_s[plain].sum() / worked_s[plain].sum() * worked_s.mean() if plain.any() else 0.0
    return ProbedStage(
        stage=row.stage, name=row.name, symbol=row.symbol, steps=len(used),
        dosed_steps=int(dosed.sum()),
        dose_s=float(doses.of(row.name, SLEPT)[used][dosed].mean()) if dosed.any() else math.nan,
        given_share=given, on_path_s=on_path_s, stage_exposed_share=on_path_s.over(float(plain_s)),
        share=on_path_s.over(of.step_s),
        computed_stage_exposed_share=_ratio(computed_s, breakdown.tau_s[steady, row.stage]),
        computed_share=_ratio(computed_s, breakdown.steps_s[steady]), because=because,
    )  # fmt: skip


def _ratio(seconds: Floats, of_s: Floats) -> float:
    return float(seconds.sum() / of_s.sum()) if of_s.sum() else math.nan


class Doses:
    """What the processes of a probed run wrote down, by step (place in `Steps.windows`) and stage:
    what was drawn, slept and worked, by all together and in the longest single stay."""

    def __init__(self, run: OpenedRun, steps: Steps) -> None:
        self._steps = len(steps.windows)
        self._values: dict[tuple[str, str], Floats] = {}
        self.refused = np.zeros(self._steps, np.bool_)  # the budget was spent
        names = run.ask("select id, text from names where text like 'probe/%/%'")
        if not names:
            return
        readings = run.ask_columns(
            "select counter, time_ns, value from raw_samples where time_ns > 0 and counter in "
            f"({', '.join(str(number) for number, _ in names)})"
        )
        place = steps.places_at(np.asarray(readings["time_ns"], np.int64))
        for number, text in names:
            _, stage, what = text.split("/")
            mine = (place >= 0) & (readings["counter"] == number)
            where, values = place[mine], readings["value"][mine]
            on_steps = self._values.setdefault((stage, what), np.zeros(self._steps))
            # Every process that records steps writes the plan; what is slept and worked adds up.
            add = np.maximum if what in (PLANNED, LONGEST) else np.add
            add.at(on_steps, where, values)
            if what == SLEPT:
                self.refused[where[values == 0]] = True

    def of(self, stage: str, what: str) -> Floats:
        """Seconds in each step; of what was `PLANNED` the dilation."""
        return self._values.get((stage, what), np.zeros(self._steps))

    def work(self, stage: str) -> tuple[Floats, Floats]:
        return self.of(stage, WORKED), self.of(stage, LONGEST)

    def given(self, stage: str) -> float:
        """What was slept over what was to be, in the median of the dosed steps; NaN: none was."""
        due = self.of(stage, PLANNED) * self.of(stage, WORKED) * ~self.refused
        dosed, slept_s = due > 0, self.of(stage, SLEPT)
        return float(np.median(slept_s[dosed] / due[dosed])) if slept_s[dosed].any() else math.nan


def work_crosses_steps(run: OpenedRun, steps: Steps) -> bool:
    ends = steps.ends_ns[list(steps.steady)]
    if not len(ends):
        return False
    no_work = (int(Stage.WAIT), int(Stage.OTHER), int(Stage.STEP))
    query = f"select start_ns, end_ns from raw_spans where start_ns > 0 and stage not in {no_work}"
    lasts = np.zeros(len(ends) + 1, np.int64)  # of the spans that begin before each end of a step
    for start_ns, end_ns in run.ask_batches(query):
        np.maximum.at(lasts, np.searchsorted(ends, start_ns, side="right"), end_ns)
    crossed = np.maximum.accumulate(lasts)[:-1] > ends
    return bool(crossed.sum() > _CROSSED * len(ends))


@dataclass(frozen=True)
class Regression:
    """Seconds on the path by stage and of a step without doses; the doses' share of the time."""

    on_path_s: dict[str, Interval]
    step_s: float
    spent: Interval


def regress(
    steps_s: Floats, dilations: dict[str, Floats], work: list[Floats], used: list[int], lags: int
) -> Regression:
    """The lengths of the steps `used` on the dilations of the same and of `lags` earlier steps, a
    line over time, and those columns of `work` that tell long steps from short ones: no dose
    changed these, so they only take noise away (Lin 2013)."""
    rows = np.array(used, np.int64)
    y = steps_s[rows]
    length_s = float(y.mean()) if len(rows) else math.nan
    columns = [f[rows - lag] for f in dilations.values() for lag in range(lags + 1)]
    if not len(rows) or not columns:
        return Regression({}, length_s, UNKNOWN)
    line = (rows - rows.mean()) / len(steps_s)
    x = np.stack([*columns, np.ones(len(rows)), line], axis=1)
    x = _with_work(x, y, [column[rows] for column in work])
    if (found := fit(x, y)) is None:
        return Regression({}, length_s, UNKNOWN)
    doses = np.arange(x.shape[1]) < len(columns)
    added = found.combined(np.where(doses, x.mean(axis=0), 0.0))
    everywhere = np.zeros(x.shape[1])  # in all steps, those that are not used as well
    everywhere[: len(columns)] = [f.mean() for f in dilations.values() for _ in range(lags + 1)]
    stage = np.arange(x.shape[1]) // (lags + 1)
    on_path = {name: found.combined(doses & (stage == at)) for at, name in enumerate(dilations)}
    step_s = length_s - added.value
    return Regression(on_path, step_s, found.combined(everywhere).over(step_s))


def _with_work(x: Floats, y: Floats, work: Sequence[Floats]) -> Floats:
    """`x` with the best columns that lower Schwarz's criterion (BIC, 1978), a few at most."""
    left = [column - column.mean() for column in work if column.std() > 1e-9]
    for _ in range(len(y) // _ROWS_A_COLUMN):
        tried = [(_criterion(np.column_stack([x, column]), y), n) for n, column in enumerate(left)]
        best, n = min(tried, default=(math.inf, -1))
        if not best < _criterion(x, y):
            break
        x = np.column_stack([x, left.pop(n)])
    return x


def _criterion(x: Floats, y: Floats) -> float:
    """Schwarz's criterion of a fit, up to a constant; infinite where it is none."""
    rows, columns = x.shape
    if rows <= columns or np.linalg.matrix_rank(x) < columns:
        return math.inf
    residual = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    spread = max(1e-18, float(residual @ residual) / rows)
    return float(rows * math.log(spread) + columns * math.log(rows))


def usable_steps(steps_s: Floats, steady: Sequence[int], lags: int) -> tuple[list[int], int]:
    """Places of the steps that a regression can use, and how many outliers were left out."""
    places = [place for place in steady if place >= lags]
    if not places:
        return [], 0
    lengths = steps_s[places]
    middle = float(np.median(lengths))
    deviation = 1.4826 * float(np.median(np.abs(lengths - middle)))
    far = max(_OUTLIER * deviation, 0.5 * middle)
    kept = [place for place in places if abs(steps_s[place] - middle) <= far]
    return kept, len(places) - len(kept)
