"""The figures of a run's last steps, over rows that were kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.activity import TABLE_OF, Activity, activity_of
from rltrace.analysis.intervals import Ints, of_spans, union
from rltrace.analysis.live import joined
from rltrace.analysis.live.snapshot import StageTime, StepDone, Updates, Window
from rltrace.analysis.stages import Breakdown, break_down
from rltrace.analysis.steps import Steps
from rltrace.analysis.steps import Window as StepWindow
from rltrace.analysis.untold_stages import ROWS_OF, untold_stages
from rltrace.trace.follow import Rows
from rltrace.trace.vocabulary import STAGE_SYMBOLS, Stage, SyncRole, word

NEVER_NS = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Recorded:
    """Rows of the time to be looked at, by table; those that are open end where they are known to
    have been going on. `spans_of` is how many spans of a stage a process has recorded, `weights`
    those of the components of the reward that have one; `sampled`: not all samples have rows."""

    tables: Mapping[str, Rows]
    spans_of: Mapping[tuple[Stage, int], int]
    weights: Mapping[int, float]
    sampled: bool = False

    def activity(self, since_ns: int) -> Activity:
        """Who was in which stage since a moment. A stage without spans is taken from its table."""
        spans = self.tables["spans"]
        used = spans.where(spans["end_ns"] >= since_ns)
        columns = {name: [used[name]] for name in ("start_ns", "end_ns", "process", "lane")}
        stages: list[Ints] = [used["stage"].astype(np.int64)]
        seen = {stage for stage, _ in self.spans_of}
        from_tables = []
        for stage, table in TABLE_OF.items():
            rows = self.tables[table]
            rows = rows.where((rows["end_ns"] > rows["start_ns"]) & (rows["end_ns"] >= since_ns))
            if stage in seen or not len(rows):
                continue
            from_tables.append(stage)
            for name in ("start_ns", "end_ns", "process"):
                columns[name].append(rows[name])
            columns["lane"].append(np.zeros(len(rows), np.int64))
            stages.append(np.full(len(rows), int(stage)))
        start, end, process, lane = (np.concatenate(columns[name]) for name in columns)
        stage_of = np.concatenate(stages)
        kinds = tuple(from_tables)
        return activity_of(
            start, end, stage_of, process, lane, self.spans_of, kinds, self._untold()
        )

    def _untold(self) -> frozenset[Stage]:
        return untold_stages(self.spans_of.keys(), ROWS_OF if self.sampled else ())


def _starts(steps: Steps) -> list[int]:
    """When all steps began, whether they ended or not; of a run without steps none."""
    begun = [start for _, start in steps.in_progress] + [start for _, start, _ in steps.failed]
    complete = [] if steps.whole_run else [window.start_ns for window in steps.windows]
    return sorted(complete + begun)


def window_of(
    recorded: Recorded, steps: Steps, last: int, next_begins_ns: int = NEVER_NS
) -> Window | None:
    """The figures of the last steady steps, at most `last`; of all of a run without steps. None
    where there is no complete step, or nothing at all. `next_begins_ns`: when the step after them,
    which is not complete, began (Unix ns)."""
    if steps.none_complete or not steps.windows:
        return None
    # Warm-up steps are told among the last ones, but are not in the means.
    shown = steps.windows[-last:]
    steady = [i for i, window in enumerate(shown) if not window.warmup]
    since, until = shown[steady[0]].start_ns, shown[steady[-1]].end_ns
    activity = recorded.activity(shown[0].start_ns)
    breakdown = break_down(activity, Steps(shown, steps.whole_run, (), 0))
    uses = recorded.tables["uses"]
    samples = joined.regrouped(
        joined.samples_of(recorded.tables["trajectories"]), uses, _starts(steps)
    )
    fates = joined.fates_of(uses, samples)
    trained = joined.trained_samples(samples, fates, recorded.tables["rewards"], recorded.weights)
    lags = joined.trained_lags(samples, uses)
    ended = (samples.end_ns >= since) & (samples.end_ns <= until)
    seconds = (samples.end_ns[ended] - samples.start_ns[ended]) / 1e9
    p50, p95 = np.quantile(seconds, (0.5, 0.95)) if len(seconds) else (math.nan, math.nan)
    return Window(
        since_ns=since,
        until_ns=until,
        steps=0 if steps.whole_run else len(steady),
        step_s=math.nan if steps.whole_run else float(breakdown.steps_s[steady].mean()),
        stages=_stages(breakdown, steady),
        unattributed_s=(
            math.nan if breakdown.untold else float(breakdown.unattributed_s[steady].mean())
        ),
        generated_samples=int(ended.sum()),
        generated_tokens=int(np.maximum(samples.tokens[ended], 0).sum()),
        latency_p50_s=float(p50),
        latency_p95_s=float(p95),
        trained=joined.trained_between(trained, since, until) if len(fates.time_ns) else None,
        lags=joined.lags_between(lags, since, until),
        updates=updates_between(recorded.tables["syncs"], since, until),
        recent=(
            ()
            if steps.whole_run
            else _recent(shown, next_begins_ns, breakdown, samples, trained, lags)
        ),
    )


def _stages(breakdown: Breakdown, steady: list[int]) -> tuple[StageTime, ...]:
    tau_s = breakdown.tau_s[steady].mean(axis=0)
    exposed_s = breakdown.exposed_s[steady].mean(axis=0)
    if breakdown.untold:
        exposed_s = np.full_like(exposed_s, math.nan)
    known_s = tau_s.copy()
    known_s[[int(stage) for stage in breakdown.untold]] = math.nan
    step_s = float(breakdown.steps_s[steady].mean())
    return tuple(
        StageTime(
            stage=word(stage),
            symbol=STAGE_SYMBOLS.get(stage, ""),
            tau_s=float(known_s[stage]),
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
    samples: joined.Samples,
    trained: joined.TrainedSamples,
    trained_at: joined.TrainedLags,
) -> tuple[StepDone, ...]:
    """A step has what was generated and trained on until the next one began."""
    begins = np.array([*(window.start_ns for window in shown), next_begins_ns], np.int64)
    tokens = np.maximum(samples.tokens, 0)
    generated = np.bincount(*_placed(samples.end_ns, begins, tokens))
    taken = np.bincount(*_placed(trained.time_ns, begins, trained.tokens))
    count = np.bincount(*_placed(trained.time_ns, begins, np.ones(len(trained.tokens), np.int64)))
    known = trained_at.known
    lags = np.bincount(*_placed(trained_at.time_ns[known], begins, trained_at.lag[known]))
    ones = np.ones(int(known.sum()), np.int64)
    of_known = np.bincount(*_placed(trained_at.time_ns[known], begins, ones))
    done = []
    stages = [stage for stage in Stage if stage not in breakdown.untold]
    for i, window in enumerate(shown):
        tau_s = {word(s): float(breakdown.tau_s[i, s]) for s in stages if breakdown.tau_s[i, s] > 0}
        done.append(
            StepDone(
                step=window.step,
                end_ns=window.end_ns,
                seconds=window.length_s,
                tau_s=tau_s,
                generated_tokens=int(generated[i + 1]),
                trained_tokens=int(taken[i + 1]),
                trained_samples=int(count[i + 1]),
                mean_lag=float(lags[i + 1] / of_known[i + 1]) if of_known[i + 1] else math.nan,
            )
        )
    return tuple(done)


def _placed(times: Ints, begins: Ints, weights: Ints) -> tuple[Ints, Ints, int]:
    """The arguments of `bincount` by step; place 0 is before the first one."""
    return np.searchsorted(begins, times, side="right"), weights, len(begins) + 1


# --- weight updates, over rows that were kept: as in the report's section on weight movement


def updates_between(rows: Rows, since_ns: int, until_ns: int) -> Updates | None:
    """The updates that began between two moments; None where there was none. Rows of an unknown
    version are each an update of their own."""
    rows = rows.where(rows["end_ns"] >= rows["start_ns"])
    number = np.where(rows["version"] >= 0, rows["version"], -rows["start_ns"]).astype(np.int64)
    numbers, which = np.unique(number, return_inverse=True)
    began = np.full(len(numbers), np.iinfo(np.int64).max)
    np.minimum.at(began, which, rows["start_ns"])
    mine = (began >= since_ns) & (began <= until_ns)
    if not mine.any():
        return None
    lane = np.zeros(len(number), np.int64)
    work = union(of_spans(which.astype(np.int64), rows["start_ns"], rows["end_ns"], lane))
    seconds = np.bincount(work.group, (work.end - work.start) / 1e9, len(numbers))
    size = np.maximum(rows["bytes"], 0).astype(np.float64)
    sent = (rows["role"] == SyncRole.SOURCE) & (rows["bytes"] >= 0)
    by_sources = np.bincount(which[sent], size[sent], len(numbers))
    has_source = np.bincount(which[sent], minlength=len(numbers)) > 0
    largest = np.full(len(numbers), -1.0)
    np.maximum.at(largest, which[rows["bytes"] >= 0], size[rows["bytes"] >= 0])
    total = np.where(has_source, by_sources, largest)[mine]
    seconds = seconds[mine]
    told = total >= 0
    length_s = (until_ns - since_ns) / 1e9
    moving_s = float(seconds[told].sum())
    return Updates(
        updates=int(mine.sum()),
        per_minute=60 * float(mine.sum()) / length_s if length_s else math.nan,
        seconds=float(seconds.mean()),
        p99_s=float(np.quantile(seconds, 0.99)),
        bytes=float(total[told].mean()) if told.any() else math.nan,
        gb_per_s=float(total[told].sum()) / moving_s / 1e9 if moving_s else math.nan,
        latest_version=int(rows["version"].max(initial=-1)),
    )
