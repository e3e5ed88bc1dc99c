"""The figures of a run's last steps, over rows that were kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.activity import Activity, activity_of
from rltrace.analysis.goodput import trained_in
from rltrace.analysis.intervals import Ints
from rltrace.analysis.live.kept_tables import (
    GENERATED,
    LAGS,
    KeptTables,
    columns_of,
    rows_of_stages,
)
from rltrace.analysis.live.snapshot import Lags, StageTime, StepDone, Updates, Window
from rltrace.analysis.live.watched import Watched
from rltrace.analysis.samples import TRAINED_SAMPLES
from rltrace.analysis.stages import Breakdown, break_down
from rltrace.analysis.stalls import without_stalls
from rltrace.analysis.steps import Steps
from rltrace.analysis.steps import Window as StepWindow
from rltrace.analysis.syncs import updates_of
from rltrace.trace.follow import Rows
from rltrace.trace.vocabulary import STAGE_SYMBOLS, Stage, word

_TRAINED = f"{TRAINED_SAMPLES} select time_ns, coalesce(tokens, 0)::bigint as tokens from trained"


def activity_since(run: Watched, recorded: Mapping[str, Rows], since_ns: int) -> Activity:
    """Who was in which stage since a moment, of rows by table that have an end each."""
    rows = rows_of_stages(recorded, {stage for stage, _ in run.stages_of})
    rows = rows.where(rows["end_ns"] >= since_ns)
    start, end, stage = rows["start_ns"], rows["end_ns"], rows["stage"]
    spans = dict.fromkeys(run.stages_of, 1)  # how many they are makes no figure here
    return activity_of(start, end, stage, rows["process"], rows["lane"], spans, ())


def window_of(
    run: Watched, recorded: Mapping[str, Rows], last: int, next_begins_ns: int
) -> Window | None:
    """The figures of the last steady steps, at most `last`; None where no step is complete.
    `recorded` are the rows of the time to be looked at, by table; those that are open end where
    they are known to have been going on. `next_begins_ns`: when the step after the last ones, which
    is not complete, began (Unix ns)."""
    if not run.steps.windows:
        return None
    # Steps of warm-up, and those that stalled, are told among the last ones, but in no mean.
    shown = run.steps.windows[-last:]
    of_shown = Steps(shown, False, (), 0)
    breakdown = break_down(activity_since(run, recorded, shown[0].start_ns), of_shown)
    steady = list(without_stalls(of_shown, breakdown).steady)
    since, until = shown[steady[0]].start_ns, shown[steady[-1]].end_ns
    tables = KeptTables(run.database, run.follower, recorded, run.step_starts_ns)
    start_ns, end_ns, tokens = columns_of(tables, GENERATED, "start_ns", "end_ns", "tokens")
    tokens = np.maximum(tokens, 0)
    lags = columns_of(tables, LAGS, "time_ns", "lag", "known")
    ended = (end_ns >= since) & (end_ns <= until)
    seconds = (end_ns[ended] - start_ns[ended]) / 1e9
    p50, p95 = np.quantile(seconds, (0.5, 0.95)) if len(seconds) else (math.nan, math.nan)
    return Window(
        since_ns=since,
        until_ns=until,
        steps=len(steady),
        step_s=float(breakdown.steps_s[steady].mean()),
        stages=_stages(breakdown, steady),
        untraced_s=float(breakdown.untraced_s[steady].mean()),
        generated_samples=int(ended.sum()),
        generated_tokens=int(tokens[ended].sum()),
        latency_p50_s=float(p50),
        latency_p95_s=float(p95),
        trained=trained_in(tables, since, until) if len(recorded["uses"]) else None,
        lags=_lags_between(lags, since, until),
        updates=updates_between(tables, since, until),
        recent=_recent(
            shown,
            next_begins_ns,
            breakdown,
            (end_ns, tokens),
            columns_of(tables, _TRAINED, "time_ns", "tokens"),
            lags,
        ),
    )


def _stages(breakdown: Breakdown, steady: list[int]) -> tuple[StageTime, ...]:
    tau_s = breakdown.tau_s[steady].mean(axis=0)
    exposed_s = breakdown.exposed_s[steady].mean(axis=0)
    step_s = float(breakdown.steps_s[steady].mean())
    return tuple(
        StageTime(
            stage=word(stage),
            symbol=STAGE_SYMBOLS.get(stage, ""),
            tau_s=float(tau_s[stage]),
            exposed_s=float(exposed_s[stage]),
            share=float(exposed_s[stage]) / step_s if step_s else math.nan,
        )
        for stage in Stage
        if stage is not Stage.STEP and tau_s[stage] > 0
    )


def _recent(
    shown: tuple[StepWindow, ...],
    next_begins_ns: int,
    breakdown: Breakdown,
    generated: Sequence[Ints],
    trained: Sequence[Ints],
    lags: Sequence[Ints],
) -> tuple[StepDone, ...]:
    """A step has what was generated and trained on until the next one began. All three are when it
    was, and how much."""
    begins = np.array([*(window.start_ns for window in shown), next_begins_ns], np.int64)
    lag_ns, lag, known = lags
    (made,) = _by_step(begins, *generated)
    taken, count = _by_step(begins, *trained, np.ones_like(trained[1]))
    lag_sum, of_known = _by_step(begins, lag_ns, lag * known, known)
    tau_s = breakdown.tau_s
    return tuple(
        StepDone(
            step=window.step,
            end_ns=window.end_ns,
            step_s=window.length_s,
            tau_s={word(stage): float(tau_s[i, stage]) for stage in Stage if tau_s[i, stage] > 0},
            generated_tokens=int(made[i]),
            trained_tokens=int(taken[i]),
            trained_samples=int(count[i]),
            mean_lag=float(lag_sum[i] / of_known[i]) if of_known[i] else math.nan,
        )
        for i, window in enumerate(shown)
    )


def _by_step(begins: Ints, times: Ints, *weights: Ints) -> list[NDArray[np.float64]]:
    """The sums of each of the weights by step."""
    place = np.searchsorted(begins, times, side="right")  # 0 is before the first one
    sums = (np.bincount(place, one, len(begins) + 1) for one in weights)
    return [one.astype(np.float64)[1:] for one in sums]


def _lags_between(lags_of: Sequence[Ints], since_ns: int, until_ns: int) -> Lags | None:
    """The lags between two moments, both included; None where nothing was trained on."""
    time_ns, lag, known = lags_of
    within = (time_ns >= since_ns) & (time_ns <= until_ns)
    if not within.any():
        return None
    lags = np.sort(lag[within & (known == 1)])
    values, counts = np.unique(lags, return_counts=True)
    bars: list[tuple[int | None, int]] = [*zip(values.tolist(), counts.tolist(), strict=True)]
    if len(lags) < within.sum():
        bars.append((None, int(within.sum()) - len(lags)))
    n = len(lags)
    return Lags(
        mean=float(lags.mean()) if n else math.nan,
        # The smallest lag that at least 95 % do not exceed, as in the report.
        p95=float(lags[max(math.ceil(0.95 * n) - 1, 0)]) if n else math.nan,
        largest=int(lags[-1]) if n else -1,
        by_lag=tuple(bars),
    )


# --- weight updates, as in the report's section on weight sync


def updates_between(tables: KeptTables, since_ns: int, until_ns: int) -> Updates | None:
    """The updates that began between two moments; None where there was none."""
    known = updates_of(tables)
    mine = [update for update in known if since_ns <= update.start_ns <= until_ns]
    if not mine:
        return None
    told = [update for update in mine if update.bytes >= 0]
    length_s, moving_s = (until_ns - since_ns) / 1e9, sum(update.seconds for update in told)
    moved = sum(update.bytes for update in told)
    return Updates(
        updates=len(mine),
        per_minute=60 * len(mine) / length_s if length_s else math.nan,
        update_s=sum(update.seconds for update in mine) / len(mine),
        bytes=moved / len(told) if told else math.nan,
        bytes_per_s=moved / moving_s if moving_s else math.nan,
        latest_version=max(update.version for update in known),
    )
