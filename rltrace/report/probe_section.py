"""The probe's section: what delaying each stage did to the step, beside the computed share."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.probe import HALF_WIDTH, IN_FULL, Probe, ProbedStage
from rltrace.analysis.stats.interval import Interval
from rltrace.report import units
from rltrace.report.layout import Section, labelled, listed, numbers, table

_TOO_WIDE = 1.0
"""An exposed part with a wider interval than this says nothing: its share of the step does."""

_IMMATERIAL = 0.05
"""A stage whose share is surely less need not be known better."""


def probe_section(probe: Probe) -> Section:
    columns = numbers(*(("steps", 76), ("by", 68), "exposed part", "computed", "share", "computed"))
    grid = table(map(_cells, probe.stages), "delayed", *columns)
    return Section("Probe", tuple(_lines(probe)), grid, tuple(_notes(probe)))


def _cells(stage: ProbedStage) -> tuple[str, ...]:
    part = stage.stage_exposed_share
    return (
        stage.name,
        str(stage.dosed_steps),
        units.seconds(stage.dose_s),
        "unclear" if part.half_width > _TOO_WIDE else _interval(part),
        f"{stage.computed_stage_exposed_share:.2f}",
        _interval(stage.share),
        f"{stage.computed_share:.2f}",
    )


def _interval(estimate: Interval) -> str:
    if not estimate.known:
        return units.UNKNOWN
    return f"{estimate.value:.2f} ± {estimate.half_width:.2f}"


def _lines(probe: Probe) -> Iterator[str]:
    odd, spent = probe.outlier_steps, probe.spent_share
    left_out = f" ({units.plural(odd, 'outlier')} left out)" if odd else ""
    yield (
        f"Each stage was delayed by {units.share(probe.dose_share)} of its own time in a quarter "
        f"of {units.plural(probe.steps, 'step')}{left_out}, at random (seed {probe.seed})."
    )
    if spent.known:
        yield (
            f"A step without delays takes {units.seconds(probe.step_s)}. Delays made steps "
            f"{units.share(spent.value)} ± {units.share(spent.half_width)} longer (budget "
            f"{units.share(probe.budget_share)}); the other figures of this report include them."
        )


def _notes(probe: Probe) -> Iterator[str]:
    if probe.stages:
        yield f"Computed: from the stage's {probe.computed_by}. Measured: from the delays alone."
    for stage in probe.stages:
        if stage.because:
            yield f"{stage.name}: unknown, {stage.because}."
        elif stage.given_share < IN_FULL:
            yield (
                f"{stage.name}: only {units.share(stage.given_share)} of its delays took effect; "
                "its figures are rough."
            )
        if stage.contradicts:
            yield (
                f"{labelled(stage.name, stage.symbol)}: the probe contradicts the computed share; "
                "believe the probe."
            )
    steps = [
        f"{stage.name} {units.count(more)}"
        for stage in probe.stages
        if stage.share.known and stage.share.high > _IMMATERIAL
        if (more := stage.more_steps_for(HALF_WIDTH))
    ]
    if steps:
        yield (f"More steps for ± {HALF_WIDTH} of the exposed part: {listed(steps)}.")
    if probe.refused_steps:
        left_out = units.plural(probe.refused_steps, "step")
        yield f"No delay in {left_out}: the budget was spent."
    if probe.not_seen:
        yield f"Asked to be delayed, but never seen: {listed(probe.not_seen)}."
