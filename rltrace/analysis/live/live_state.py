"""`LiveState`: a run while it goes on, as of the last look.

The report's own code makes the figures of the last steps; only rows that it needs are kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic, thread_time

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.figures.devices import Devices, count_devices
from rltrace.analysis.figures.goodput import trained_in
from rltrace.analysis.figures.weight_updates import updates_of
from rltrace.analysis.live import role_activity
from rltrace.analysis.live import snapshot as said
from rltrace.analysis.live.followed_run import Watched
from rltrace.analysis.live.recent_rows import (
    GENERATED,
    NEVER_NS,
    KeptTables,
    columns_of,
    ended,
    rows_of_stages,
)
from rltrace.analysis.live.sample_meter import STEPS_BACK
from rltrace.analysis.stuck.observed import newest
from rltrace.analysis.timeline.intervals import Ints
from rltrace.analysis.timeline.placement import stated_placement
from rltrace.analysis.timeline.process_intervals import Activity, activity_of
from rltrace.analysis.timeline.stages import Breakdown, break_down, without_stalls
from rltrace.analysis.timeline.steps import Steps
from rltrace.analysis.timeline.steps import Window as StepWindow
from rltrace.analysis.trajectories.staleness import LAG_OF_USES
from rltrace.trace.errors import RltraceError
from rltrace.trace.job_devices import AGENT
from rltrace.trace.read.run_follower import Rows, RunFollower
from rltrace.trace.read.trajectory_lifecycle import TRAINED_SAMPLES
from rltrace.trace.schema import OF_ONE_SAMPLE
from rltrace.trace.vocabulary import STAGE_SYMBOLS, Fate, Stage, word

LAST_STEPS = 10  # how many steady steps the figures are of
BUSY_OVER_S = 10.0  # the time over which it is shown what each role did
_SPANS_BACK_NS = 60 * 10**9  # of a run without steps
_SLOWEST = 8
_TRAINED = word(Fate.TRAINED)


class LiveState(Watched):
    """The run in `path`; figures are of the last `last` steady steps. Errors: `RltraceError` when
    there is no run. Call `poll` now and then, and `snapshot` for what is known. Who watches a job
    for hours is `sparing`: once made, figures stay that many times the CPU time that they took."""

    def __init__(self, path: Path, last: int = LAST_STEPS, sparing: float = 0.0) -> None:
        self._last = last
        super().__init__(path, sparing=sparing)

    def poll(self, at_once: bool = False) -> None:
        """Reads what is new; `at_once`: without sparing. Where a step shows up that began before
        what was forgotten, the run is read again: rows may be recorded in any order."""
        self._take_in(at_once)
        if any(self._since(name) < kept.since_ns for name, kept in self.kept.items()):
            try:
                self._begin(RunFollower(self.follower.path))
            except RltraceError:
                return  # it was deleted meanwhile
        busy_ns = self.until_ns - int(BUSY_OVER_S * 1e9)
        for name, kept in self.kept.items():
            kept.drop_before(min(self._since(name), busy_ns))

    def _begin(self, follower: RunFollower) -> None:
        """Reads all there is. Nothing is forgotten before it is: at the first look steps may be
        missing whose rows are there, or rows whose steps are."""
        super()._begin(follower)
        self._window: said.LiveWindow | None = None
        self._stale = 0  # how often the window is to be computed again
        self._window_not_before_s = 0.0  # there is none to stay
        self._devices = Devices("", 0, "", "")
        self._take_in()

    def _take_in(self, at_once: bool = False) -> None:
        before, new = self.steps.windows, self.read(at_once)
        if len(new["spans"]) or not self._devices.kind:
            self._devices = count_devices(self.follower)
        if self.steps.windows != before:  # once more when what ended with it has come in
            self._stale = 2
        if self._adds_to_the_window(new):
            self._stale = max(self._stale, 1)
        at_once |= self.job.is_over or monotonic() >= self._window_not_before_s
        if self._stale > 0 and at_once:
            self._stale -= 1
            began_s, recorded = thread_time(), self._recorded(self._since)
            self._window = window_of(self, recorded, self._last, self._next_begins_ns())
            self._window_not_before_s = monotonic() + self._sparing * (thread_time() - began_s)

    def snapshot(self) -> said.Snapshot:
        follower, samples, until = self.follower, self.samples, self.until_ns
        generating = self.going_on("trajectories")
        busy_since = until - int(BUSY_OVER_S * 1e9)
        busy = activity_since(self, self._recorded(lambda _: busy_since), busy_since)
        return said.Snapshot(
            time_ns=self.clock_ns, job=self.job,
            placement=(stated_placement(follower) or ("", ""))[0],
            step=self._step_now(), window=self._window,
            totals=said.Totals(
                steps=len(self.steps.windows),
                generated_samples=sum(samples.finishes.values()),
                generated_tokens=sum(samples.generated_tokens.values()),
                trained_samples=samples.fates.get(_TRAINED, 0),
                trained_tokens=samples.trained_tokens,
                lost={why: n for why, n in samples.fates.items() if why != _TRAINED},
            ),
            roles=role_activity.roles_now(self, busy, busy_since, until),
            queue=self._queue(), in_flight=len(generating),
            waiting_for_first_token=int((generating["first_token_ns"] < 0).sum()),
            slowest=role_activity.slowest(self, generating, _SLOWEST),
            devices=self._devices, readings=self.readings.now(follower),
            dead=role_activity.dead_in_the_middle(self),
            stopped=role_activity.stopped_recording(self),
            processes=sum(process.role != AGENT for process in follower.processes),
            stuck=newest(follower.stuck, self.last_event_ns),
        )  # fmt: skip

    def _next_begins_ns(self) -> int:
        """When the step after the last complete one began. It may be over, and is complete a little
        later: what was recorded in it is known at once, and is not the step's before."""
        if not self.steps.windows:
            return NEVER_NS
        last, open_ = self.steps.windows[-1], self._open_steps()
        start = open_["start_ns"]
        # A loop may begin a step before the one before it ends.
        early = (open_["process"] == last.process) & (open_["step"] != last.step)
        after = (start >= last.end_ns) | (early & (start > last.start_ns))
        return int(start[after].min(initial=NEVER_NS))

    def _adds_to_the_window(self, new: dict[str, Rows]) -> bool:
        """Whether rows came in late: of a step that is in the window already. Once the job is over
        there is no next step with which what reaches into the last one would be taken in."""
        if self._window is None:
            return False
        events = [(name, rows) for name, rows in new.items() if name != "samples" and len(rows)]
        earliest_ns = (int(rows[self.kept[name].end].min()) for name, rows in events)
        return bool(events) and (self.job.is_over or min(earliest_ns) <= self._window.until_ns)

    def _since(self, table: str) -> int:
        """From when on the window needs rows: samples may be long before they are trained on."""
        windows, of_samples = self.steps.windows, table in OF_ONE_SAMPLE
        first = len(windows) - self._last - (STEPS_BACK if of_samples else 1)
        back_ns = (10 if of_samples else 1) * _SPANS_BACK_NS
        since_ns = min(self.until_ns - back_ns, self._open_since_ns)
        if windows:
            since_ns = 0 if of_samples and first <= 0 else windows[max(0, first)].start_ns
        return since_ns

    def _recorded(self, since: Callable[[str], int]) -> dict[str, Rows]:
        """The rows of each table since a moment. What is open lasts until now, and in a process
        that lives no more until its last sign of life: then a sample, or a verdict, has no end."""
        lasting: dict[str, list[Rows]] = {"uses": [], "samples": []}
        lasting["syncs"] = [self.follower.unfinished("syncs")]
        for name in self.kept.keys() - lasting:
            ends_ns = self.ends_ns(self.now_ns, self.last_sign_ns if name == "spans" else {}, -1)
            lasting[name] = [ended(self.follower.unfinished(name), ends_ns)]
        return {name: kept.since(since(name), *lasting[name]) for name, kept in self.kept.items()}

    def _step_now(self) -> said.StepNow | None:
        """The open step; a job that ended well left one only by an exception that it caught."""
        if not self.steps.in_progress or self.job.exit_code == 0:
            return None
        step, start_ns = max(self.steps.in_progress, key=lambda one: one[1])
        usual_s = self._window.step_s if self._window else math.nan
        return said.StepNow(step, start_ns, max(0, self.until_ns - start_ns) / 1e9, usual_s)

    def _queue(self) -> int | None:
        """Samples that may still be met: older ones were dropped, and nobody said so."""
        samples, windows, window = self.samples, self.steps.windows, self._window
        if not self.learner_tells:
            return None
        if window is None:
            return samples.waiting(0)
        lag = max(0, window.lags.largest) if window.lags else 1
        since_ns = windows[-min(lag, len(windows))].start_ns if lag else windows[-1].end_ns
        return samples.waiting(since_ns)


_TRAINED_ROWS = (
    f"{TRAINED_SAMPLES} select time_ns, coalesce(tokens, 0)::bigint as tokens from trained"
)


def activity_since(run: Watched, recorded: Mapping[str, Rows], since_ns: int) -> Activity:
    """Who was in which stage since a moment, of rows by table that have an end each."""
    rows = rows_of_stages(recorded, {stage for stage, _ in run.stages_of})
    rows = rows.where(rows["end_ns"] >= since_ns)
    start, end, stage = rows["start_ns"], rows["end_ns"], rows["stage"]
    spans = dict.fromkeys(run.stages_of, 1)  # how many they are makes no figure here
    return activity_of(start, end, stage, rows["process"], rows["lane"], spans, ())


def window_of(
    run: Watched, recorded: Mapping[str, Rows], last: int, next_begins_ns: int
) -> said.LiveWindow | None:
    """The figures of the last steady steps, at most `last`; None where no step is complete.
    `recorded` are the rows of the time to be looked at, by table; `next_begins_ns` is when the step
    after the last ones, which is not complete, began (Unix ns)."""
    if not run.steps.windows:
        return None
    # Steps of warm-up, and those that stalled, are told among the last ones, but in no mean.
    shown = run.steps.windows[-last:]
    of_shown = Steps(shown, False, (), 0)
    tables = KeptTables(run, recorded)
    of_training = {**recorded, "spans": tables.spans_of_training()}
    breakdown = break_down(activity_since(run, of_training, shown[0].start_ns), of_shown)
    steady = list(without_stalls(of_shown, breakdown).steady)
    since, until = shown[steady[0]].start_ns, shown[steady[-1]].end_ns
    start_ns, end_ns, tokens = columns_of(tables, GENERATED, "start_ns", "end_ns", "tokens")
    generated = end_ns, np.maximum(tokens, 0)
    trained = columns_of(tables, _TRAINED_ROWS, "time_ns", "tokens")
    lags = columns_of(tables, LAG_OF_USES, "time_ns", "lag", "known")
    ended = (end_ns >= since) & (end_ns <= until)
    seconds = (end_ns[ended] - start_ns[ended]) / 1e9
    p50, p95 = np.quantile(seconds, (0.5, 0.95)) if len(seconds) else (math.nan, math.nan)
    return said.LiveWindow(
        since_ns=since, until_ns=until,
        steps=len(steady), step_s=float(breakdown.steps_s[steady].mean()),
        stages=_stages(breakdown, steady),
        untraced_s=float(breakdown.untraced_s[steady].mean()),
        generated_samples=int(ended.sum()),
        generated_tokens=int(generated[1][ended].sum()),
        latency_p50_s=float(p50), latency_p95_s=float(p95),
        trained=trained_in(tables, since, until) if len(recorded["uses"]) else None,
        lags=_lags_between(lags, since, until),
        updates=updates_between(tables, since, until),
        recent=_recent(shown, next_begins_ns, breakdown, generated, trained, lags),
    )  # fmt: skip


def _stages(breakdown: Breakdown, steady: list[int]) -> tuple[said.StageTime, ...]:
    tau_s = breakdown.tau_s[steady].mean(axis=0)
    exposed_s = breakdown.exposed_s[steady].mean(axis=0)
    step_s = float(breakdown.steps_s[steady].mean())
    return tuple(
        said.StageTime(
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
    shown: tuple[StepWindow, ...], next_begins_ns: int, breakdown: Breakdown,
    generated: Sequence[Ints], trained: Sequence[Ints], lags: Sequence[Ints],
) -> tuple[said.StepDone, ...]:  # fmt: skip
    """What was generated and trained on until the next step began, given as when and how much."""
    begins = np.array([*(window.start_ns for window in shown), next_begins_ns], np.int64)
    lag_ns, lag, known = lags
    (made,) = _by_step(begins, *generated)
    taken, count = _by_step(begins, *trained, np.ones_like(trained[1]))
    lag_sum, of_known = _by_step(begins, lag_ns, lag * known, known)
    tau_s = breakdown.tau_s
    return tuple(
        said.StepDone(
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
    place = np.searchsorted(begins, times, side="right")  # 0 is before the first one
    sums = (np.bincount(place, one, len(begins) + 1) for one in weights)
    return [one.astype(np.float64)[1:] for one in sums]


def _lags_between(lags_of: Sequence[Ints], since_ns: int, until_ns: int) -> said.Lags | None:
    """The lags between two moments, both included; None where nothing was trained on."""
    time_ns, lag, known = lags_of
    within = (time_ns >= since_ns) & (time_ns <= until_ns)
    if not within.any():
        return None
    lags = np.sort(lag[within & (known == 1)])
    n = len(lags)
    bars: list[tuple[int | None, int]] = [*Counter(lags.tolist()).items()]
    if unknown := int(within.sum()) - n:
        bars.append((None, unknown))
    return said.Lags(
        mean=float(lags.mean()) if n else math.nan,
        # The smallest lag that at least 95 % do not exceed, as in the report.
        p95=float(lags[max(math.ceil(0.95 * n) - 1, 0)]) if n else math.nan,
        largest=int(lags[-1]) if n else -1,
        by_lag=tuple(bars),
    )


def updates_between(tables: KeptTables, since_ns: int, until_ns: int) -> said.UpdateFigures | None:
    known = updates_of(tables)
    mine = [update for update in known if since_ns <= update.start_ns <= until_ns]
    if not mine:
        return None
    told = [update for update in mine if update.bytes >= 0]
    length_s, moving_s = (until_ns - since_ns) / 1e9, sum(update.seconds for update in told)
    moved = sum(update.bytes for update in told)
    return said.UpdateFigures(
        updates=len(mine),
        per_minute=60 * len(mine) / length_s if length_s else math.nan,
        update_s=sum(update.seconds for update in mine) / len(mine),
        bytes=moved / len(told) if told else math.nan,
        bytes_per_s=moved / moving_s if moving_s else math.nan,
        latest_version=max(update.version for update in known),
    )
