"""What a gate said, in words and tables: pass or fail, by how much, and what made it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from rltrace.analysis.gate import metrics
from rltrace.analysis.gate.metrics import MAX_REGRESSION, WALL, FactorChange, StageChange
from rltrace.analysis.stats.confidence_interval import Estimate, Interval
from rltrace.report import units
from rltrace.report.layout import Grid, Section, TableColumn, brief, listed, numbers, raised, table

Ends = Interval | Estimate
MARKS = {metrics.PASS: "✓", metrics.REGRESSION: "✗", metrics.UNSURE: "?"}
_RUNS = "baseline", "this run"
_MOST_TOLD = 4  # conditions with a paragraph of their own
_MOST_NOTES = 5


def headline(found: metrics.Judgement) -> str:
    """The answer in one line: `regression: goodput 4.8 % worse, mostly rollout`."""
    decisive = [one for one in found.findings if one.outcome == found.outcome]
    if found.outcome == metrics.PASS:
        n = len(found.findings)
        return "pass: " + ("the condition holds" if n == 1 else f"all {n} conditions hold")
    return f"{found.outcome}: {'; '.join([*found.alarms, *map(_brief, decisive)])}"


def _brief(one: metrics.Finding) -> str:
    if one.outcome == metrics.UNSURE:
        return one.condition.text
    if math.isnan(one.worse_share.value):
        return one.because
    stage = f", mostly {one.stage.name}" if one.stage is not None else ""
    return f"{one.condition.subject} {units.share(one.worse_share.value)} worse{stage}"


def sections(found: metrics.Judgement) -> Iterator[Section]:
    """The findings, what made it where a comparison failed, and what else a reader should know."""
    rests_on = tuple(_rests_on(found))
    yield Section(f"Gate: {headline(found)}", tuple(_lines(found)), _grid(found), rests_on)
    compared = [one for one in found.findings if one.condition.kind == MAX_REGRESSION]
    if any(one.outcome != metrics.PASS for one in compared):
        if found.stages:
            yield Section("Stages", (), of_stages(found.stages, _RUNS))
        if found.factors:
            titles = ("factor of goodput", *_RUNS)
            yield Section("Goodput", (), of_factors(found.factors, titles))
    if found.notes:
        notes = [*map(_begun, found.notes)]
        yield Section("What else differs", tuple(brief(notes, _MOST_NOTES)))


def _lines(found: metrics.Judgement) -> Iterator[str]:
    for line in alarmed(found):
        yield f"{MARKS[metrics.REGRESSION]} {line}"
    order = (metrics.REGRESSION, metrics.UNSURE, metrics.PASS)
    worst = sorted(found.findings, key=lambda one: order.index(one.outcome))
    for one in worst[:_MOST_TOLD]:
        yield f"{MARKS[one.outcome]} {sentence(one)}"
    if rest := [f"{MARKS[one.outcome]} {one.condition.text}" for one in worst[_MOST_TOLD:]]:
        yield "   ".join(rest)


def alarmed(found: metrics.Judgement) -> tuple[str, ...]:
    """A sentence for each run that crashed, got stuck or has another alarm."""
    return tuple(map(_begun, found.alarms))


def sentence(one: metrics.Finding) -> str:
    """What became of a condition, why, and what made it: one paragraph."""
    why, worse = one.because, one.worse_share
    if one.outcome == metrics.REGRESSION and not math.isnan(worse.value):
        ends = interval_beside(worse, units.share, "95 % ")
        why = f"{units.share(worse.value)} worse{ends}; {why}"
    return " ".join([f"{one.condition.text}: {_ended(why)}", *_made(one), *_would_tell(one)])


def _made(one: metrics.Finding) -> Iterator[str]:
    if one.normalised:
        yield f"Compared {_ended(one.normalised)}"
    if one.outcome == metrics.PASS:
        return
    if (stage := one.stage) is not None:
        step, part = units.before_after(stage.before_s, stage.after_s), stage.difference_share
        share = f"{signed_share(part.value)} of the step{interval_beside(part, signed_share)}"
        yield f"{stage.name} made most of it: {step} a step, {share}."
    if (factor := one.factor) is not None:
        yield f"Of goodput's factors, {factor.name} changed most: {percent(factor.ratio)}."


def _would_tell(one: metrics.Finding) -> Iterator[str]:
    if one.outcome != metrics.UNSURE:
        return
    ways = (
        (one.more_steps, "step", " of each run"),
        (one.more_runs, "run", ""),
        (one.more_baselines, "run", " in the baseline"),
    )
    if said := [f"{units.plural(n, what)} more{where}" for n, what, where in ways if n]:
        yield f"What would tell, with noise as it is: {listed(said)}."


def _grid(found: metrics.Judgement) -> Grid | None:
    rows = []
    for one in (one for one in found.findings if one.condition.kind != WALL):
        name = f"{MARKS[one.outcome]} {one.condition.subject}"
        unit = "" if one.unit == "s" else one.unit
        values, worse = (_value(one, one.baseline), _value(one, one.value)), one.worse_share
        shares = signed_share(worse.value), interval_ends(worse, signed_share)
        rows.append((name, unit, *values, *shares))
    shown = numbers(*_RUNS, "worse by", ("95 %", 76))
    return table(rows, "metric", TableColumn("unit", least_width=90), *shown)


def _value(one: metrics.Finding, value: float) -> str:
    if math.isnan(value):
        return units.UNKNOWN
    if one.unit == "s":
        return units.seconds(value)
    return units.count(value) if abs(value) >= 100 else units.number(value)


def _rests_on(found: metrics.Judgement) -> Iterator[str]:
    own = _steps(found.steps, found.warmup)
    if found.baseline_steps:
        rest = _steps(found.baseline_steps, found.baseline_warmup)
        pairs = ", step by step" if found.paired else ""
        yield f"{own} against {rest} of the baseline{pairs}."
        yield f"At most {units.share(found.alpha)} false alarms, over all conditions."
    else:
        yield f"{own}."


def _steps(steps: tuple[int, ...], warmup: tuple[int, ...]) -> str:
    left = f" ({units.count(sum(warmup))} warm-up steps left out)" if sum(warmup) else ""
    return f"{units.plural(sum(steps), 'step')} of {units.plural(len(steps), 'run')}{left}"


def _begun(text: str) -> str:
    return _ended(raised(text))


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


_A_FACTOR = 10
_ALMOST_NOTHING = 1000  # times what it was before: that was almost none
_MOST_STAGES = 7
_LEAST_SEEN = 1e-3  # of the longest stage; of what is shorter there is nothing to see
ONCE = "one value a run"  # stands for the interval of a factor that is measured once a run
GOODPUT = "goodput"  # the row of the factors' product
_RATES = (GOODPUT, "peak rate")  # tokens; all else is a share


def percent(ratio: Interval) -> str:
    """`+4.2 % (+1.0 % to +7.5 %)` of a ratio of 1.042; see `interval_beside`."""
    return change(ratio.value) + interval_beside(ratio, change)


def interval_beside(interval: Ends, show: Callable[[float], str], what: str = "") -> str:
    """` (1.0 to 2.0)` behind a value; empty where an end is unknown, or both read as the value."""
    between = interval_ends(interval, show)
    return f" ({what}{between})" if between not in ("", show(interval.value)) else ""


def change(ratio: float) -> str:
    """`+4.2 %` of a ratio of 1.042, `38×` from ten times as much on."""
    if ratio >= _ALMOST_NOTHING:
        return f"{_ALMOST_NOTHING:,}× or more"
    return f"{ratio:.0f}×" if ratio >= _A_FACTOR else signed_share(ratio - 1)


def signed_share(share: float) -> str:
    """`+4.2 %` of 0.042; nothing that is seen has no sign."""
    if math.isnan(share):
        return units.UNKNOWN
    shown = f"{100 * share:+.1f}"
    return f"{shown if float(shown) else '0.0'} %"


def interval_ends(interval: Ends, show: Callable[[float], str]) -> str:
    """`1.0 to 2.0`, or one figure where both read the same; empty where an end is unknown."""
    if math.isnan(interval.low) or math.isnan(interval.high):
        return ""
    return units.between(show(interval.low), show(interval.high))


def of_factors(factors: Iterable[FactorChange], titles: tuple[str, str, str]) -> Grid | None:
    """How the factors of goodput changed; the interval is for pages that have the room."""
    what, *runs = titles
    rows = []
    for one in factors:
        show = units.count if one.name in _RATES else units.share
        ends_ = ONCE if one.once else interval_ends(one.ratio, change)
        rows.append((one.name, show(one.before), show(one.after), change(one.ratio.value), ends_))
    return table(rows, what, *numbers(*runs, "change", ("95 %", 60)))


def of_stages(stages: Iterable[StageChange], runs: tuple[str, str]) -> Grid | None:
    """How the exposed time of stages changed, what changed most first."""
    by_change = sorted(stages, key=lambda one: -abs(one.after_s - one.before_s))
    longest = max((max(one.before_s, one.after_s) for one in by_change), default=0.0)
    scale = units.scale(longest)
    seen = [one for one in by_change if max(one.before_s, one.after_s) > _LEAST_SEEN * longest]
    rows = []
    for one in seen[:_MOST_STAGES]:
        times, part = map(scale.show, (one.before_s, one.after_s)), one.difference_share
        shares = signed_share(part.value), interval_ends(part, signed_share)
        rows.append((one.name, *times, *shares))
    columns = numbers(*runs, "of the step", ("95 %", 60))
    return table(rows, f"exposed, {scale.unit} a step", *columns)
