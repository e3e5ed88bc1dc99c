"""Two runs beside each other, in words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rltrace.analysis.compare import Comparison
from rltrace.analysis.differing import Difference
from rltrace.analysis.gate.contrast import TAU
from rltrace.report import ratios, units
from rltrace.report.layout import Section, listed, numbers, table

_MOST_STAGES = 8
_MOST_SETTINGS = 12


def sections(found: Comparison) -> Iterator[Section]:
    """The answer, then stages, factors of goodput, and what differs in work, settings, devices."""
    yield Section("What made the difference", tuple(_answer(found)))
    if found.stages:
        yield _stages(found)
    if found.factors:
        factors = ratios.of_factors(found.factors, ("factor", "before", "after"))
        yield Section("Goodput, whole runs", (), factors)
    yield Section("What else differs", tuple(_others(found)))


def _answer(found: Comparison) -> Iterator[str]:
    """Whether the runs are well, the step, and what it is due to."""
    for which, alarms in zip(("before", "after"), found.alarms, strict=True):
        for says in alarms:
            yield f"The run {which} is not well: {says}."
    change = f"{units.seconds(found.before_s)} a step before, {units.seconds(found.after_s)} after"
    if not found.step_ratio.excludes(1.0):
        chance = ratios.percent(found.step_ratio)
        yield f"{change}: no difference that is more than chance ({chance})."
    else:
        word = "slower" if found.step_ratio.value > 1 else "faster"
        yield f"{change}: {word}, {ratios.percent(found.step_ratio)}."
        if (stage := found.stage) is not None:
            part = stage.difference_s.value / found.difference_s.value
            ends = ratios.beside(stage.difference_s, _signed)
            yield (
                f"Most of it is {stage.name}: {_signed(stage.difference_s.value)} a step{ends}, "
                f"{units.share(part)} of the difference."
            )
        elif found.stages:
            yield "No single stage surely made it."
    yield from _work_and_pace(found)
    if (factor := found.factor) is not None:
        once = f" ({ratios.ONCE})" if factor.once else ""
        yield f"Of goodput, {factor.name} changed most: {ratios.percent(factor.ratio)}{once}."


def _work_and_pace(found: Comparison) -> Iterator[str]:
    if math.isnan(found.work_ratio.value):
        yield "Tokens were not recorded: other work and another pace cannot be told apart."
        return
    drifted = [one.name for one in found.drift if one.changed]
    yield (
        f"Work and pace: tokens a step {ratios.percent(found.work_ratio)}, seconds a token "
        f"{ratios.percent(found.pace_ratio)}; the work "
        f"{f'differs in {listed(drifted)}' if drifted else 'is alike'}."
    )


def _stages(found: Comparison) -> Section:
    scale = units.scale(max(found.before_s, found.after_s))
    rows: list[tuple[str, ...]] = [
        (
            one.name,
            scale.show(one.before_s),
            scale.show(one.after_s),
            scale.show(one.difference_s.value),
            ratios.ends(one.difference_s, scale.show),
        )
        for one in found.stages[:_MOST_STAGES]
    ]
    if rest := found.stages[_MOST_STAGES:]:
        before, after = sum(s.before_s for s in rest), sum(s.after_s for s in rest)
        rows.append(("others", *map(scale.show, (before, after, after - before)), ""))
    whole = (found.before_s, found.after_s, found.difference_s.value)
    rows.append(("step", *map(scale.show, whole), ratios.ends(found.difference_s, scale.show)))
    columns = numbers("before", "after", "difference", ("95 %", 60))
    one, other = found.steps
    notes = (
        f"Means of {one} and {other} steady steps; the differences add up to the step's. Intervals "
        f"take it that starts of a job differ by {100 * TAU:g} %.",
    )
    return Section("Stages", (), table(rows, f"exposed, {scale.unit}", *columns), notes)


def _others(found: Comparison) -> Iterator[str]:
    for one in (one for one in found.drift if abs(one.ratio.value - 1) >= 1e-9):
        sure = "" if one.changed else " (may be chance)"
        yield (
            f"{one.name}: {units.number(one.before)} before, {units.number(one.after)} after, "
            f"{ratios.percent(one.ratio)}{sure}."
        )
    yield from _listed("Settings", found.settings)
    yield from _listed("Devices and programs", found.devices)


def _listed(title: str, differences: tuple[Difference, ...]) -> Iterator[str]:
    if not differences:
        yield f"{title}: none."
        return
    shown = [f"{d.name} {d.before!r} → {d.after!r}" for d in differences[:_MOST_SETTINGS]]
    more = len(differences) - len(shown)
    yield f"{title}: {'; '.join(shown)}{f'; and {more} more' if more else ''}."


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "") + units.seconds(seconds)
