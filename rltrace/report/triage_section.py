"""Triage and design in words and tables."""

from __future__ import annotations

from rltrace.analysis.plan.selector import Design
from rltrace.analysis.plan.triage import Fix, Triage
from rltrace.report import units
from rltrace.report.layout import Column, Grid, Section, listed
from rltrace.report.walls_section import gain_words


def triaged(found: Triage, fix: Fix | None) -> Section:
    """Steps by placement, what binds, the first fix."""
    columns = (
        Column("placement"),
        Column("actors", right=True),
        Column("learner", right=True),
        Column("weights", right=True),
        Column("step", right=True),
        Column(""),
    )
    rows = tuple(
        (
            f"> {step.placement}" if step.placement == found.placement else step.placement,
            units.seconds(step.actors_s),
            units.seconds(step.learner_s),
            units.seconds(step.weights_s),
            units.seconds(step.step_s),
            step.formula,
        )
        for step in found.steps
    )
    names = [wall.wall for wall in found.binding]
    lines = [
        f"{listed(names)} bind{'s' * (len(names) == 1)}: {_costs(found)}"
        if names
        else f"nothing binds: {_costs(found)}"
    ]
    if fix is not None:
        gain = ""
        if fix.found is not None:
            gain = f": {gain_words(fix.found.goodput_gain)} tokens a device-second"
        lever = f" ({fix.lever})" if fix.lever else ""
        lines.append(f"first, against {fix.wall}: {fix.move}{lever}{gain}")
    notes = (
        f"colocated over async: {found.gain:.2f}, each stage on as many devices as it has now; at "
        "equal devices in all, turning a sum into a maximum alone gains nothing",
    )
    return Section("Triage", tuple(lines), Grid(columns, rows), notes)


def designed(found: Design) -> list[Section]:
    """Walls with their architectures, then the framework."""
    columns = (Column("wall"), Column("architecture"), Column("first"), Column("risk"))
    rows = tuple((a.wall, a.architecture, a.first, a.risk) for a in found.aspects)
    choice = found.choice
    lines = (
        f"{choice.framework.name}: {choice.framework.says}",
        *(f"    {reason}" for reason in choice.reasons),
        f"near it: {listed(list(choice.others))}",
        *choice.papers,
    )
    return [
        Section(f"Design: {found.placement}", (), Grid(columns, rows)),
        Section("Framework", lines, notes=(f"maturity is an opinion of {choice.opinions}",)),
    ]


def _costs(found: Triage) -> str:
    return ", ".join(f"{wall.wall} {units.share(wall.share)}" for wall in found.walls)
