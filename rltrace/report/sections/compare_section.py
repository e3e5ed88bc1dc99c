"""Two runs, or pairs of runs, side by side: what differs, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple

from rltrace.analysis import compare
from rltrace.analysis.compare import Comparison, Trial
from rltrace.analysis.fixes.job_settings import Difference
from rltrace.analysis.gate.metrics import FactorChange, StageChange
from rltrace.analysis.gate.regression import TAU
from rltrace.analysis.stats.confidence_interval import Estimate, Interval
from rltrace.report import units
from rltrace.report.layout import Section, brief, listed, numbers, raised, table
from rltrace.report.sections import gate_section
from rltrace.report.sections.verdict_section import gain_words
from rltrace.trace.errors import ANSWER_IS_NO, CANNOT_TELL, OK
from rltrace.trace.safe_text import visible

_RUNS = "before", "after"
_MOST_ALARMS = 3
_MOST_SETTINGS = 6
_LONGEST = 24  # characters of a setting


def sections(found: Comparison, names: tuple[str, str] = ("before", "after")) -> Iterator[Section]:
    """The answer, then what made it and what else differs; `names` are those of the runs."""
    title = f"rltrace compare · {names[0]} → {names[1]}"
    alarms = [
        f"! {name}: {says}."
        for name, alarmed in zip(names, found.alarms, strict=True)
        for says in alarmed[:_MOST_ALARMS]
    ]
    kinds = zip(names, found.no_rollout, strict=True)
    alarms += [
        f"! {name}: {kind}, no rollout: steps of other work." for name, kind in kinds if kind
    ]
    yield Section(title, (*alarms, *_answer(found)))
    if found.stages:
        share = Interval(*(end - 1 for end in astuple(found.step_ratio)))  # as the answer has it
        step = found.before_s, found.after_s, found.difference_s, share
        stages = gate_section.of_stages([StageChange("step", *step), *found.stages], _RUNS)
        one, other = found.steps
        means = f"Means of {one} and {other} steady steps."
        ends = f"The intervals assume that two starts of a job differ by {100 * TAU:g} %."
        yield Section("Stages", (), stages, (f"{means} {ends}",))
    if found.factors:
        before = math.prod(one.before for one in found.factors)
        after = math.prod(one.after for one in found.factors)
        ratio = Interval(after / before if before else math.nan, math.nan, math.nan)
        factors = [FactorChange(gate_section.GOODPUT, before, after, ratio), *found.factors]
        yield Section("Goodput", (), gate_section.of_factors(factors, ("whole runs", *_RUNS)))
    yield Section("What else differs", tuple(_others(found)))


def _answer(found: Comparison) -> Iterator[str]:
    step = f"{units.before_after(found.before_s, found.after_s)} a step"
    if not found.step_ratio.excludes(1.0):
        yield f"No difference beyond chance: {step}, {gate_section.percent(found.step_ratio)}."
    else:
        word = "slower" if found.step_ratio.value > 1 else "faster"
        yield f"{word.capitalize()}: {step}, {gate_section.percent(found.step_ratio)}."
        if (stage := found.stage) is not None:
            part = units.share(stage.difference_s.value / found.difference_s.value)
            ends = gate_section.interval_beside(stage.difference_s, _signed)
            step = f"{_signed(stage.difference_s.value)} a step{ends}"
            yield f"{stage.name} made most of it: {step}, {part} of the difference."
        elif found.stages:
            yield "No single stage clearly made most of it."
    if found.rate_ratio.known:
        rate = gate_section.percent(found.rate_ratio)
        yield f"Goodput of the steady steps, useful tokens a second: {rate}."
    if (factor := found.factor) is not None:
        changed = gate_section.percent(factor.ratio)
        once = f" ({gate_section.ONCE})" if factor.once else ""
        yield f"Of its factors over whole runs, {factor.name} changed most: {changed}{once}."
    if math.isnan(found.work_ratio.value):
        if not any(found.no_rollout):
            yield "No tokens were recorded, so nothing tells more work from slower work."
        return
    work, pace = map(gate_section.percent, (found.work_ratio, found.pace_ratio))
    drifted = [one.name for one in found.drift if one.changed]
    differs = f" The work differs in {listed(drifted)}." if drifted else ""
    yield f"Work: {work} tokens a step. Pace: {pace} seconds a token.{differs}"


def _others(found: Comparison) -> Iterator[str]:
    drifted = [one for one in found.drift if abs(one.ratio.value - 1) >= 1e-9]
    chance = []
    for one in drifted:
        if one.changed:
            before, after = units.number(one.before), units.number(one.after)
            yield f"{one.name}: {before} → {after}, {gate_section.percent(one.ratio)}."
        else:
            chance.append(f"{one.name} {gate_section.change(one.ratio.value)}")
    if chance:
        yield f"May be chance: {', '.join(chance)}."
    yield from _listed("Settings", found.settings)
    yield from _listed("Devices and programs", found.devices)


def _listed(title: str, differences: tuple[Difference, ...]) -> Iterator[str]:
    if not differences:
        yield f"{title}: the same."
        return
    shown = []
    for one in differences:
        before, after = (visible(repr(value), _LONGEST) for value in (one.before, one.after))
        shown.append(f"{one.name} {before} → {after}")
    yield f"{title}: {'; '.join(brief(shown, _MOST_SETTINGS))}."


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "") + units.seconds(seconds)


EXIT_CODES = dict.fromkeys((compare.CONFIRMED, compare.GAINS), OK)
EXIT_CODES |= dict.fromkeys((compare.REFUTED, compare.LOSES, compare.NO_GAIN), ANSWER_IS_NO)
EXIT_CODES[compare.UNDECIDED] = CANNOT_TELL

_OF = {
    compare.STEP: "steps a second",
    compare.FRESHNESS: "fresh samples a second",
    compare.GOODPUT: "useful, fresh tokens a second",
}


def expected(predicted: Estimate | None, metric: str) -> Iterator[str]:
    if predicted is None:
        yield "no gain is predicted"
    else:
        yield f"predicted: {gain_words(predicted)} {_OF[metric]}"


def experiment(name: str, found: Trial) -> Section:
    rows = []
    for n, pair in enumerate(found.pairs, 1):
        times = (units.seconds(run.step_s) for run in pair)
        counts = (units.count(run.effective_tokens_per_s) for run in pair)
        rows.append((str(n), *times, *counts))
    rates = ("before, tokens/s", 76), ("after, tokens/s", 76)
    grid = table(rows, "pair", *numbers("before", "after", *rates))
    notes = ("Means of steady steps; tokens are useful ones, weighted by freshness.",)
    ends = gate_section.interval_beside(found.gain, gate_section.change, "95 % ")
    gain, pairs = gate_section.change(found.gain.value), units.plural(len(found.pairs), "pair")
    lines = [f"{raised(found.because)}.", f"Measured: {gain}{ends} {_OF[found.metric]} ({pairs})."]
    if found.predicted is not None:
        lines.append(f"Predicted: {gain_words(found.predicted)}.")
    title = f"Experiment: {name}: {found.answer}"
    return Section(title, tuple(lines), grid, notes if rows else ())
