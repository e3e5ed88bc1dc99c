"""`LiveState`: a run while it is going on, brought up to date as often as somebody looks.

The figures of the steps are made by the report's own code over the rows of the last steps; only
rows that such figures need are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic, thread_time

from rltrace.analysis.composition import stated_placement
from rltrace.analysis.devices import Devices, count_devices
from rltrace.analysis.live import roles
from rltrace.analysis.live.kept_tables import NEVER_NS, ended
from rltrace.analysis.live.sample_meter import STEPS_BACK
from rltrace.analysis.live.snapshot import Snapshot, StepNow, Totals, Window
from rltrace.analysis.live.watched import Watched
from rltrace.analysis.live.window import activity_since, window_of
from rltrace.trace.errors import RltraceError
from rltrace.trace.follow import Follower, Rows
from rltrace.trace.given import AGENT
from rltrace.trace.sampled import only_some
from rltrace.trace.schema import OF_ONE_SAMPLE
from rltrace.trace.vocabulary import Fate, word

LAST_STEPS = 10
"""How many steady steps the figures are of."""

BUSY_OVER_S = 10.0
"""The time over which it is shown what each role did."""

_SPANS_BACK_NS = 60 * 10**9  # of a run without steps
_SLOWEST = 8
_TRAINED = word(Fate.TRAINED)


class LiveState(Watched):
    """The run in `path`; figures are of the last `last` steady steps. Errors: `RltraceError` when
    there is no run. Call `poll` now and then, and `snapshot` for what is known. Who watches a job
    for hours is `sparing`: once made, figures stay for that many times the CPU time that they took.
    """

    def __init__(self, path: Path, last: int = LAST_STEPS, sparing: float = 0.0) -> None:
        self._last = last
        super().__init__(path, sparing=sparing)

    def poll(self, at_once: bool = False) -> None:
        """Reads what is new; `at_once`: without sparing. Where a step shows up that began before
        what was forgotten, the run is read again: steps may be recorded when they are over, and
        rows in any order."""
        self._take_in(at_once)
        if any(self._since(name) < kept.since_ns for name, kept in self.kept.items()):
            try:
                self._begin(Follower(self.follower.path))
            except RltraceError:
                return  # it was deleted meanwhile
        busy_ns = self.until_ns - int(BUSY_OVER_S * 1e9)
        for name, kept in self.kept.items():
            kept.drop_before(min(self._since(name), busy_ns))

    def _begin(self, follower: Follower) -> None:
        """Reads all there is. Nothing is forgotten before it is: at the first look steps may be
        missing whose rows are there, or rows whose steps are."""
        super()._begin(follower)
        self._window: Window | None = None
        self._stale = 0  # how often the window is to be computed again
        self._window_not_before_s = 0.0  # there is none to stay
        self._devices = Devices("", 0, "", "")
        self._take_in()

    def _take_in(self, at_once: bool = False) -> None:
        before = self.steps.windows
        new = self.read(at_once)
        if len(new["spans"]) or not self._devices.kind:
            self._devices = count_devices(self.follower)
        if self.steps.windows != before:  # once more when what ended with it has come in
            self._stale = 2
        if self._adds_to_the_window(new):
            self._stale = max(self._stale, 1)
        at_once |= self.job.is_over or monotonic() >= self._window_not_before_s
        if self._stale > 0 and at_once:
            self._stale -= 1
            began_s = thread_time()
            recorded = self._recorded(self._since)
            self._window = window_of(self, recorded, self._last, self._next_begins_ns())
            self._window_not_before_s = monotonic() + self._sparing * (thread_time() - began_s)

    def snapshot(self) -> Snapshot:
        """What is known as of the last `poll`."""
        follower, samples, until = self.follower, self.samples, self.until_ns
        generating = self.going_on("trajectories")
        busy_since = until - int(BUSY_OVER_S * 1e9)
        recorded = self._recorded(lambda _: busy_since)
        return Snapshot(
            time_ns=self.clock_ns,
            job=self.job,
            placement=(stated_placement(follower) or ("", ""))[0],
            step=self._step_now(),
            window=self._window,
            totals=Totals(
                steps=len(self.steps.windows),
                generated_samples=sum(samples.finishes.values()),
                generated_tokens=sum(samples.generated_tokens.values()),
                trained_samples=samples.fates.get(_TRAINED, 0),
                trained_tokens=samples.trained_tokens,
                lost={why: n for why, n in samples.fates.items() if why != _TRAINED},
            ),
            roles=roles.roles_now(
                self, activity_since(self, recorded, busy_since), busy_since, until
            ),
            queue=self._queue(),
            in_flight=len(generating),
            waiting_for_first_token=int((generating["first_token_ns"] < 0).sum()),
            slowest=roles.slowest(self, generating, _SLOWEST),
            devices=self._devices,
            readings=self.readings.now(follower),
            dead=roles.dead_in_the_middle(self),
            processes=sum(process.role != AGENT for process in follower.processes),
            only_some=only_some(follower.meta),
            dropped=follower.dropped,
            stopped=roles.stopped_recording(self),
        )

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
        ends = [
            rows[self.kept[name].end]
            for name, rows in new.items()
            if name != "samples" and len(rows)
        ]
        until_ns = self._window.until_ns
        return any(self.job.is_over or int(end.min()) <= until_ns for end in ends)

    def _since(self, table: str) -> int:
        """From when on the window needs rows of a table, or that of the first step that ends will:
        of samples there may have been some long before they were trained on."""
        windows, of_samples = self.steps.windows, table in OF_ONE_SAMPLE
        first = len(windows) - self._last - (STEPS_BACK if of_samples else 1)
        if not windows:
            back_ns = 10 * _SPANS_BACK_NS if of_samples else _SPANS_BACK_NS
            since_ns = min(self.until_ns - back_ns, self._open_since_ns)
        else:
            since_ns = 0 if of_samples and first <= 0 else windows[max(0, first)].start_ns
        return max(since_ns, self.follower.lost_until_ns)

    def _recorded(self, since: Callable[[str], int]) -> dict[str, Rows]:
        """The rows of each table since a moment. What is open lasts until now, and in a process
        that lives no more until its last sign of life: then a sample, or a verdict, has no end."""
        lasting: dict[str, list[Rows]] = {"uses": [], "samples": []}
        lasting["syncs"] = [self.follower.unfinished("syncs")]
        for name in self.kept.keys() - lasting:
            ends_ns = self.ends_ns(self.now_ns, self.last_sign_ns if name == "spans" else {}, -1)
            lasting[name] = [ended(self.follower.unfinished(name), ends_ns)]
        return {name: kept.since(since(name), *lasting[name]) for name, kept in self.kept.items()}

    def _step_now(self) -> StepNow | None:
        """The last step that was begun and has not ended; a job that ended well left none open but
        by an exception that it caught."""
        if not self.steps.in_progress or self.job.exit_code == 0:
            return None
        step, start_ns = max(self.steps.in_progress, key=lambda one: one[1])
        usual_s = self._window.step_s if self._window else float("nan")
        return StepNow(step, start_ns, max(0, self.until_ns - start_ns) / 1e9, usual_s)

    def _queue(self) -> int | None:
        """Samples that may still be met: those that are older than any that the learner trains on
        were dropped, or filtered, and nobody said so."""
        samples, windows, window = self.samples, self.steps.windows, self._window
        if not self.learner_tells:
            return None
        if window is None:
            return samples.waiting(0)
        lag = max(0, window.lags.largest) if window.lags else 1
        return samples.waiting(
            windows[-min(lag, len(windows))].start_ns if lag else windows[-1].end_ns
        )
