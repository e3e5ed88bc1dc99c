"""What a gate said, in words and tables: pass or fail, by how much, and what made it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rltrace.analysis.gate import findings
from rltrace.analysis.gate.metrics import MAX_REGRESSION, WALL
from rltrace.report import ratios, units
from rltrace.report.layout import Column, Grid, Section, brief, listed, numbers, raised, table

MARKS = {findings.PASS: "✓", findings.REGRESSION: "✗", findings.UNSURE: "?"}
_RUNS = "baseline", "this run"
_MOST_TOLD = 4  # conditions with a paragraph of their own
_MOST_NOTES = 5


def headline(found: findings.Judgement) -> str:
    """The answer in one line: `regression: goodput 4.8 % worse, mostly rollout`."""
    decisive = [one for one in found.findings if one.outcome == found.outcome]
    if found.outcome == findings.PASS:
        n = len(found.findings)
        return "pass: " + ("the condition holds" if n == 1 else f"all {n} conditions hold")
    return f"{found.outcome}: {'; '.join([*found.alarms, *map(_brief, decisive)])}"


def _brief(one: findings.Finding) -> str:
    if one.outcome == findings.UNSURE:
        return one.condition.text
    if math.isnan(one.worse_share.value):
        return one.because
    stage = f", mostly {one.stage.name}" if one.stage is not None else ""
    return f"{one.condition.subject} {units.share(one.worse_share.value)} worse{stage}"


def sections(found: findings.Judgement) -> Iterator[Section]:
    """The findings, what made it where a comparison failed, and what else a reader should know."""
    yield Section(
        f"Gate: {headline(found)}",
        tuple(_lines(found)),
        _grid(found),
        tuple(_rests_on(found)),
    )
    compared = [one for one in found.findings if one.condition.kind == MAX_REGRESSION]
    if any(one.outcome != findings.PASS for one in compared):
        if found.stages:
            yield Section("Stages", (), ratios.of_stages(found.stages, _RUNS))
        if found.factors:
            factors = ratios.of_factors(found.factors, ("factor of goodput", *_RUNS))
            yield Section("Goodput", (), factors)
    if found.notes:
        notes = [*map(_begun, found.notes)]
        yield Section("What else differs", tuple(brief(notes, _MOST_NOTES)))


def _lines(found: findings.Judgement) -> Iterator[str]:
    """What failed with its reasons, then what holds; where there is much, in brief."""
    for line in alarmed(found):
        yield f"{MARKS[findings.REGRESSION]} {line}"
    order = (findings.REGRESSION, findings.UNSURE, findings.PASS)
    worst = sorted(found.findings, key=lambda one: order.index(one.outcome))
    for one in worst[:_MOST_TOLD]:
        yield f"{MARKS[one.outcome]} {sentence(one)}"
    if rest := [f"{MARKS[one.outcome]} {one.condition.text}" for one in worst[_MOST_TOLD:]]:
        yield "   ".join(rest)


def alarmed(found: findings.Judgement) -> tuple[str, ...]:
    """A sentence for each run that crashed, got stuck or has another alarm."""
    return tuple(map(_begun, found.alarms))


def sentence(one: findings.Finding) -> str:
    """What became of a condition, why, and what made it: one paragraph."""
    return " ".join([f"{one.condition.text}: {_ended(_why(one))}", *_made(one), *_more(one)])


def _why(one: findings.Finding) -> str:
    """What became of it, with by how much where it is a regression."""
    if one.outcome != findings.REGRESSION or math.isnan(one.worse_share.value):
        return one.because
    ends = ratios.beside(one.worse_share, units.share, "95 % ")
    return f"{units.share(one.worse_share.value)} worse{ends}; {one.because}"


def _made(one: findings.Finding) -> Iterator[str]:
    """What was compared, and the stage and the factor of goodput that made a difference."""
    if one.normalised:
        yield f"Compared {_ended(one.normalised)}"
    if one.outcome == findings.PASS:
        return
    if (stage := one.stage) is not None:
        yield (
            f"{stage.name} made most of it: "
            f"{units.before_after(stage.before_s, stage.after_s)} a step, "
            f"{ratios.signed_share(stage.difference_share.value)} of the step"
            f"{ratios.beside(stage.difference_share, ratios.signed_share)}."
        )
    if (factor := one.factor) is not None:
        yield f"Of goodput's factors, {factor.name} changed most: {ratios.percent(factor.ratio)}."


def _more(one: findings.Finding) -> Iterator[str]:
    """What would tell."""
    if one.outcome != findings.UNSURE:
        return
    ways = [
        f"{units.plural(number, what)} more{where}"
        for number, what, where in (
            (one.more_steps, "step", " of each run"),
            (one.more_runs, "run", ""),
            (one.more_baselines, "run", " in the baseline"),
        )
        if number
    ]
    if ways:
        yield f"What would tell: {listed(ways)}."


def _grid(found: findings.Judgement) -> Grid | None:
    rows = (
        (
            f"{MARKS[one.outcome]} {one.condition.subject}",
            "" if one.unit == "s" else one.unit,
            _value(one, one.baseline),
            _value(one, one.value),
            ratios.signed_share(one.worse_share.value),
            ratios.ends(one.worse_share, ratios.signed_share),
        )
        for one in found.findings
        if one.condition.kind != WALL
    )
    shown = numbers(*_RUNS, "worse by", ("95 %", 76))
    return table(rows, "metric", Column("unit", least_width=90), *shown)


def _value(one: findings.Finding, value: float) -> str:
    if math.isnan(value):
        return units.UNKNOWN
    if one.unit == "s":
        return units.seconds(value)
    return units.count(value) if abs(value) >= 100 else units.number(value)


def _rests_on(found: findings.Judgement) -> Iterator[str]:
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
