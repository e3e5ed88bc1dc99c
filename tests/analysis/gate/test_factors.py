"""The factors of goodput over settled steps: shares that can be, whatever is generated ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rltrace.testing.inside.analysis import (
    MAX_REGRESSION,
    RunSeries,
    Verdicts,
    judge_series,
    parse_condition,
    series_of,
)
from rltrace.testing.inside.analysis import metrics as m
from rltrace.testing.inside.trace import Fate, Stage
from rltrace.testing.made import process, rows, run_of

STEPS, SAMPLES, TOKENS, LENGTH_S = 12, 4, 100, 10.0


def one_step_ahead(path: Path, dropped: int = 0) -> RunSeries:
    """A job that generates the batch of the next step beside each step, and none in the last one;
    `dropped` of each batch are dropped by the learner. The first batch is generated before."""
    spans = [
        span
        for n in range(STEPS)
        for begin in (LENGTH_S * (n + 1),)
        for span in (
            (("step", n), begin, begin + LENGTH_S),
            (Stage.TRAIN, begin, begin + 0.8 * LENGTH_S),
        )
    ]
    batch = np.repeat(np.arange(STEPS), SAMPLES)
    place = np.tile(np.arange(SAMPLES), STEPS)
    learner = rows(
        process("learner", *spans),
        "uses",
        trajectory=list(range(1, STEPS * SAMPLES + 1)),
        time_s=(LENGTH_S * (batch + 1) + 7).tolist(),
        fate=np.where(place < dropped, int(Fate.STALE), int(Fate.TRAINED)).tolist(),
        version=batch.tolist(),
    )
    engine = rows(
        process(
            "rollout", *((Stage.ROLLOUT, LENGTH_S * n, LENGTH_S * n + 9) for n in range(STEPS))
        ),
        "trajectories",
        trajectory=list(range(1, STEPS * SAMPLES + 1)),
        start_s=(LENGTH_S * batch).tolist(),
        end_s=(LENGTH_S * batch + 9).tolist(),
        response_tokens=[TOKENS] * (STEPS * SAMPLES),
    )
    return series_of(run_of(path, learner, engine))


@pytest.mark.parametrize("dropped", [0, 1])
def test_a_share_of_tokens_generated_ahead_is_no_more_than_all_of_them(
    tmp_path: Path, dropped: int
) -> None:
    run = one_step_ahead(tmp_path, dropped)
    assert run.columns[m.GENERATED][-1] == 0
    assert run.columns[m.USEFUL][-1] == (SAMPLES - dropped) * TOKENS
    assert run.columns[m.DECIDED].tolist() == [SAMPLES * TOKENS] * STEPS
    again = replace(run, run="again", start_ns=run.start_ns + 1)
    goodput = parse_condition(MAX_REGRESSION, "goodput=3%")
    found = judge_series([again], [run], [goodput], Verdicts(()))
    factors = {one.name: one for one in found.factors}
    assert factors["useful share"].after == pytest.approx(1 - dropped / SAMPLES)
    rate = run.columns[m.USEFUL].sum() / run.columns[m.DEVICES].sum()
    assert np.prod([one.after for one in found.factors]) == pytest.approx(rate, rel=0.02)


def test_what_the_learner_never_met_counts_where_it_ended(tmp_path: Path) -> None:
    engine = rows(
        process("rollout", (Stage.ROLLOUT, 0, 40)),
        "trajectories",
        trajectory=[1, 2, -1],
        start_s=[1.0, 11.0, 21.0],
        end_s=[9.0, 19.0, 29.0],
        response_tokens=[5, 7, 11],
    )
    steps = [(("step", n), 10 * n, 10 * n + 10) for n in range(4)]
    learner = rows(
        process("learner", *steps, (Stage.TRAIN, 0, 40)),
        "uses",
        trajectory=[1],
        time_s=[35.0],
        fate=[int(Fate.TRAINED)],
    )
    run = series_of(run_of(tmp_path, learner, engine))
    assert run.columns[m.DECIDED].tolist() == [0, 7, 11, 5]
