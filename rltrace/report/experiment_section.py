"""What an experiment found, in words."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis import trial
from rltrace.analysis.bootstrap import Interval
from rltrace.analysis.trial import Pace, Trial
from rltrace.analysis.whatif.predict import Estimate
from rltrace.report import ratios, units
from rltrace.report.layout import Column, Grid, Section
from rltrace.trace.errors import ANSWER_IS_NO, CANNOT_TELL, OK

EXIT_CODES = {
    trial.CONFIRMED: OK,
    trial.GAINS: OK,
    trial.REFUTED: ANSWER_IS_NO,
    trial.LOSES: ANSWER_IS_NO,
    trial.NO_GAIN: ANSWER_IS_NO,
    trial.CANNOT_TELL: CANNOT_TELL,
}

_THE_SAME = 0.02

_OF = {
    trial.STEP: "of a step's time",
    trial.FRESHNESS: "of what a step's worth of fresh samples costs",
    trial.GOODPUT: "of what a useful, fresh token costs",
}
_LEFT_OUT = {trial.FRESHNESS: "useful tokens a step", trial.GOODPUT: "tokens a sample"}


def expected(predicted: Estimate | None, metric: str) -> Iterator[str]:
    """What was predicted, before anything is run."""
    if predicted is None:
        yield "nothing predicts what it gains"
    else:
        ends = sorted((1 - 1 / predicted.low, 1 - 1 / predicted.high))
        yield f"predicted: it saves {_range(ends[0], ends[1])} {_OF[metric]}"


def section(name: str, found: Trial) -> Section:
    """The answer, with the pairs of runs."""
    columns = (
        Column("pair"),
        Column("before", right=True),
        Column("after", right=True),
        Column("before, tokens/s", right=True, least_width=76),
        Column("after, tokens/s", right=True, least_width=76),
    )
    rows = tuple((str(n + 1), *_cells(*pair)) for n, pair in enumerate(found.pairs))
    return Section(
        f"Experiment: {name}",
        tuple(_lines(found)),
        Grid(columns, rows) if rows else None,
        ("Means of steady steps; tokens are useful ones, weighted by freshness.",) if rows else (),
    )


def _lines(found: Trial) -> Iterator[str]:
    saved, of = found.saved, _OF[found.metric]
    yield f"Measured: it saves {_interval(saved)} {of} ({units.plural(len(found.pairs), 'pair')})."
    predicted = found.predicted_saved
    if predicted is not None:
        yield f"Predicted: {_range(predicted.low, predicted.high)}."
    if abs(found.uncounted - 1) > _THE_SAME:
        by = units.share(abs(found.uncounted - 1))
        than = f"{by} {'more' if found.uncounted > 1 else 'fewer'} {_LEFT_OUT[found.metric]}"
        yield f"After it there are {than}, as the policy learns otherwise: this is not counted."
    yield f"{found.answer[0].upper()}{found.answer[1:]}: {found.because}."


def _cells(before: Pace, after: Pace) -> tuple[str, ...]:
    return (
        units.seconds(before.step_s),
        units.seconds(after.step_s),
        units.count(before.effective_tokens_per_s),
        units.count(after.effective_tokens_per_s),
    )


def _interval(of: Interval) -> str:
    return units.share(of.value) + ratios.beside(of, units.share, "95 % ")


def _range(low: float, high: float) -> str:
    return units.between(units.share(low), units.share(high))
