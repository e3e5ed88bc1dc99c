"""What a gate said, in words and tables: the answer, what made it, what it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rltrace.analysis.gate import findings
from rltrace.analysis.gate.conditions import MAX_REGRESSION, WALL
from rltrace.report import ratios, units
from rltrace.report.layout import Column, Grid, Section, listed, numbers, table

MARKS = {findings.PASS: "✓", findings.REGRESSION: "✗", findings.UNSURE: "?"}
_MOST_STAGES = 8
_LEAST_SEEN = 1e-3  # of the longest stage; of what is shorter there is nothing to see


def headline(found: findings.Judgement) -> str:
    """The answer in one line: `regression: goodput fell by 4.8 % (...)`."""
    decisive = [one for one in found.findings if one.outcome == found.outcome]
    if found.outcome == findings.PASS:
        n = len(found.findings)
        return "pass: " + ("the condition holds" if n == 1 else f"all {n} conditions hold")
    named = [listed([one.condition.text for one in decisive])] if decisive else []
    return f"{found.outcome}: {'; '.join([*found.alarms, *named])}"


def sections(found: findings.Judgement) -> Iterator[Section]:
    """The findings, what made it where a comparison failed, and what else a reader should know."""
    yield Section(
        f"Gate: {headline(found)}",
        (
            *(f"{MARKS[findings.REGRESSION]} {line}" for line in unwell(found)),
            *(f"{MARKS[one.outcome]} {sentence(one)}" for one in found.findings),
        ),
        _grid(found),
        tuple(_rests_on(found)),
    )
    compared = [one for one in found.findings if one.condition.kind == MAX_REGRESSION]
    if any(one.outcome != findings.PASS for one in compared):
        if found.stages:
            yield _stages(found)
        if found.factors:
            columns = ("factor of goodput", "baseline", "this run")
            yield Section("Goodput", (), ratios.of_factors(found.factors, columns))
    if found.notes:
        yield Section("What else differs", tuple(map(_begun, found.notes)))


def unwell(found: findings.Judgement) -> tuple[str, ...]:
    """A sentence for each run that is not well."""
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
            f"Most of it is {stage.name}: {units.seconds(stage.before_s)} a step in the baseline, "
            f"{units.seconds(stage.after_s)} here, "
            f"{ratios.signed_share(stage.difference_share.value)} of the step"
            f"{ratios.beside(stage.difference_share, ratios.signed_share)}."
        )
    if (factor := one.factor) is not None:
        yield f"Of goodput's factors, {factor.name} changed most: {ratios.percent(factor.ratio)}."


def _more(one: findings.Finding) -> Iterator[str]:
    """How it could be told."""
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
    shown = numbers("baseline", "this run", "worse by", ("95 %", 76))
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
        yield f"False alarms: at most {units.share(found.alpha)} over all conditions."
    else:
        yield f"{own}."


def _steps(steps: tuple[int, ...], warmup: tuple[int, ...]) -> str:
    left = f" ({units.count(sum(warmup))} of warm-up left out)" if sum(warmup) else ""
    return f"{units.plural(sum(steps), 'step')} of {units.plural(len(steps), 'run')}{left}"


def _stages(found: findings.Judgement) -> Section:
    longest = max(max(one.before_s, one.after_s) for one in found.stages)
    seen = [one for one in found.stages if max(one.before_s, one.after_s) > _LEAST_SEEN * longest]
    shown = sorted(seen, key=lambda one: -abs(one.after_s - one.before_s))[:_MOST_STAGES]
    scale = units.scale(longest)
    rows = (
        (
            one.name,
            scale.show(one.before_s),
            scale.show(one.after_s),
            ratios.signed_share(one.difference_share.value),
            ratios.ends(one.difference_share, ratios.signed_share),
        )
        for one in shown
    )
    columns = numbers("baseline", "this run", "of the step", ("95 %", 60))
    notes = ("Means of a step. of the step: what the stage adds to the baseline's.",)
    return Section("Stages", (), table(rows, f"exposed, {scale.unit}", *columns), notes)


def _begun(text: str) -> str:
    return _ended(text[:1].upper() + text[1:])


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
