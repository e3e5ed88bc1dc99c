"""What an experiment found, in words."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis import trial
from rltrace.analysis.stats.estimate import Estimate
from rltrace.analysis.trial import Trial
from rltrace.report import ratios, units
from rltrace.report.layout import Section, numbers, table
from rltrace.trace.errors import ANSWER_IS_NO, CANNOT_TELL, OK

EXIT_CODES = {
    trial.CONFIRMED: OK,
    trial.GAINS: OK,
    trial.REFUTED: ANSWER_IS_NO,
    trial.LOSES: ANSWER_IS_NO,
    trial.NO_GAIN: ANSWER_IS_NO,
    trial.CANNOT_TELL: CANNOT_TELL,
}

_OF = {
    trial.STEP: "of a step's time",
    trial.FRESHNESS: "of what a step's worth of fresh samples costs",
    trial.GOODPUT: "of what a useful, fresh token costs",
}


def expected(predicted: Estimate | None, metric: str) -> Iterator[str]:
    """What was predicted, before anything is run."""
    if predicted is None:
        yield "nothing predicts what it gains"
    else:
        ends = sorted((1 - 1 / predicted.low, 1 - 1 / predicted.high))
        yield f"predicted: it saves {_range(ends[0], ends[1])} {_OF[metric]}"


def section(name: str, found: Trial) -> Section:
    rows = [
        (
            str(n),
            *(units.seconds(run.step_s) for run in pair),
            *(units.count(run.effective_tokens_per_s) for run in pair),
        )
        for n, pair in enumerate(found.pairs, 1)
    ]
    rates = ("before, tokens/s", 76), ("after, tokens/s", 76)
    grid = table(rows, "pair", *numbers("before", "after", *rates))
    notes = ("Means of steady steps; tokens are useful ones, weighted by freshness.",)
    return Section(f"Experiment: {name}", tuple(_lines(found)), grid, notes if rows else ())


def _lines(found: Trial) -> Iterator[str]:
    saved = units.share(found.saved.value) + ratios.beside(found.saved, units.share, "95 % ")
    pairs = units.plural(len(found.pairs), "pair")
    yield f"Measured: it saves {saved} {_OF[found.metric]} ({pairs})."
    if (predicted := found.predicted_saved) is not None:
        yield f"Predicted: {_range(predicted.low, predicted.high)}."
    yield f"{found.answer[0].upper()}{found.answer[1:]}: {found.because}."


def _range(low: float, high: float) -> str:
    return units.between(units.share(low), units.share(high))
