"""The critical path: what each part of a run waited for.

From the end of the last step the path goes back through whatever came last of all that each start
needed (`path_dependencies`), in any process. Time that nothing recorded explains is never charged
to a stage.

A stage's share of the path is the part of the time by which the run would be shorter if the stage
took none of it and nothing else changed its order. It differs from the exposed share where stages
run at once: the rule of the longer chain looks at each moment, the path at what led to what.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import Spread, spread
from rltrace.analysis.timeline.interval_lookup import Lane, Lanes
from rltrace.analysis.timeline.intervals import Ints, mapped
from rltrace.analysis.timeline.path_dependencies import Gates
from rltrace.analysis.timeline.path_events import EventKind, Events, Known, events_of, read_syncs
from rltrace.analysis.timeline.process_intervals import Activity
from rltrace.analysis.timeline.stage_chains import Seconds, summed
from rltrace.analysis.timeline.steps import Steps
from rltrace.trace.vocabulary import Stage, word

UNKNOWN = "unknown"
MOST_SPANS = 1_000_000  # in a stretch, about; several are in memory at once
_ALWAYS = 1 << 62
_MARGIN = 8  # parts of a stretch that one margin is
_FEWEST_LINKED = 0.5
_MOST_UNKNOWN = 0.25  # where more is unknown, what is not on the path may be after all


@dataclass(frozen=True)
class PathSegment:
    """A stretch of the path, Unix ns; `stage` None, `process` -1: nothing recorded explains it."""

    start_ns: int
    end_ns: int
    stage: Stage | None
    process: int
    what: str


@dataclass(frozen=True)
class PathShare:
    """A stage on the path of the steady steps, seconds a step, beside its exposed share."""

    stage: str
    on_path_s: Spread
    segments: int
    share: float
    exposed_share: float


@dataclass(frozen=True)
class CriticalPath:
    """The path by stage, the largest share first. `steps_s` has the seconds of each step by stage,
    with what nothing explains as `UNKNOWN`; they add up. `segments` is how many stretches the whole
    path has. Where samples cannot be followed (`because`) there are no figures."""

    is_traced: bool
    because: str
    steps: int
    shares: tuple[PathShare, ...]
    unknown_share: float
    steps_s: tuple[dict[str, float], ...]
    segments: int = 0

    def seconds_of(self, stage: Stage, places: Sequence[int]) -> Seconds:
        return np.array([self.steps_s[i].get(word(stage), 0.0) for i in places], np.float64)

    @property
    def well_known(self) -> bool:
        return self.is_traced and not self.unknown_share > _MOST_UNKNOWN


def critical_path(analysis: RunAnalysis) -> CriticalPath | None:
    """The path by step and stage; None of an imported log, and where there is no step."""
    steps, breakdown = analysis.steps, analysis.breakdown
    if analysis.run.meta.get("imported") or not steps.windows:
        return None
    found = analysis.path_segments
    if isinstance(found, str):
        return CriticalPath(False, found, len(steps.steady), (), math.nan, ())
    seconds, counts = _by_step(found, steps)
    names = [*(word(stage) for stage in Stage), UNKNOWN]
    steady = list(steps.steady)
    total_s = float(breakdown.steps_s[steady].sum())
    exposed = np.concatenate([breakdown.exposed_s, breakdown.untraced_s[:, None]], axis=1)

    def share(values: Seconds) -> float:
        return float(values[steady].sum()) / total_s if total_s else math.nan

    shares = [
        PathShare(
            stage=name,
            on_path_s=spread(seconds[steady, column]),
            segments=int(counts[steady, column].sum()),
            share=share(seconds[:, column]),
            exposed_share=share(exposed[:, column]),
        )
        for column, name in enumerate(names)
        if seconds[:, column].any() or exposed[:, column].any()
    ]
    return CriticalPath(
        is_traced=True,
        because="",
        steps=len(steady),
        shares=tuple(sorted(shares, key=lambda one: -one.share)),
        unknown_share=share(seconds[:, -1]),
        steps_s=tuple(
            {name: float(row[i]) for i, name in enumerate(names) if row[i]} for row in seconds
        ),
        segments=len(found),
    )


def find_path(analysis: RunAnalysis, most_spans: int = MOST_SPANS) -> tuple[PathSegment, ...] | str:
    """The stretches of the path without gaps over all steps, in order; or why there is none."""
    activity, steps, followed = analysis.activity, analysis.steps, analysis.tracks
    if steps.whole_run:
        return "no step was recorded"
    if not activity.processes_of_stage.get(Stage.TRAIN):
        return "nothing of the learner was seen"
    if not len(followed.samples):
        return "no trajectory was recorded"
    if not followed.linked_share:
        return "no use of a sample by the learner was recorded"
    if followed.linked_share < _FEWEST_LINKED:
        known = f"{100 * followed.linked_share:.0f} %"
        return f"only {known} of the samples that the learner used were seen being generated"
    updates = read_syncs(analysis.run)
    path = _Path(steps.windows[0].start_ns, steps.windows[-1].end_ns)

    def walk(part: Stretch) -> tuple[Stretch, _Walk]:
        samples = followed.within(part.since_ns, part.until_ns, part.seen)
        moved = updates.within(part.since_ns, part.until_ns)
        events = events_of(activity, part.since_ns, part.until_ns, samples, moved)
        return part, _Walk(events, Gates(analysis, events, samples, moved))

    for part, made in mapped(walk, reversed(stretches(activity, steps, most_spans))):
        made.back(path, int(steps.starts_ns[part.first]))
    return tuple(path.segments[::-1])


@dataclass
class _Path:
    """What of the path is known, the last first. It goes on back from `now` to `since`, from the
    event `at` (None: what came before `now`), which is there because of `why`."""

    since: int
    now: int
    at: Known | None = None
    why: str = ""
    segments: list[PathSegment] = field(default_factory=list)


class _Walk:
    def __init__(self, events: Events, gates: Gates) -> None:
        self.events, self.gates = events, gates
        columns = events.process, events.start_ns, events.end_ns
        pieces = events.of(EventKind.PIECE)
        is_structure = events.stage[pieces] == Stage.OTHER
        others = pieces[is_structure]
        self.work = Lanes(*columns, pieces[~is_structure])
        self.around = Lanes(*columns, others)
        self.structure = Lane(events.start_ns, events.end_ns, others)

    def back(self, path: _Path, border: int) -> None:
        """Follows the path back to the border, or to the start of the event that lies across it."""
        at = -1 if path.at is None else self.events.find(path.at)
        if at >= 0:  # of a piece that was cut off the rest is here
            start = max(path.since, int(self.events.start_ns[at]))
            path.segments += self._work(at, start, path.now, path.why)
            path.now = min(path.now, start)
        while path.now > border:
            last, why = self.gates.before(at) if at >= 0 else self.gates.before_end(path.now)
            known = last >= 0 and self.events.end_ns[last] > path.since
            reached = min(int(self.events.end_ns[last]), path.now) if known else border
            path.segments += self._unexplained(at, reached, path.now)
            path.now = reached
            if not known:
                break
            start = max(path.since, int(self.events.start_ns[last]))
            path.segments += self._work(last, start, reached, why)
            at, path.now, path.why = last, start, why
        path.at = self.events.known(at) if at >= 0 else None

    def _work(self, place: int, start: int, end: int, why: str) -> Iterator[PathSegment]:
        """What an event did until `end`, the last first; its tools, whose time is unknown, last."""
        stage, process = Stage(int(self.events.stage[place])), int(self.events.process[place])
        tools = int(self.events.end_ns[place] - self.events.tools_ns[place])
        tools = max(start, min(end, tools))
        if tools < end:
            yield PathSegment(tools, end, Stage.ENV, process, why)
        if start < tools:
            yield PathSegment(start, tools, stage, process, why)

    def _unexplained(self, place: int, start: int, end: int) -> Iterator[PathSegment]:
        """Time between what was needed and the start of the event at `place`, the last first: of
        the stage that its process was in, else of the structure around it. That yields to its
        process's work: while some requests queue at an engine, it generates others."""
        process = int(self.events.process[place]) if place >= 0 else -1
        own = [lanes[process] for lanes in (self.work, self.around) if process in lanes]
        lanes = [*own, self.structure]
        while end > start:
            found = [at for lane in lanes if (at := lane.open(end - 1)) >= 0]
            around = next((at for at in found if self._worked_ns(at, end) < end), -1)
            if around >= 0:
                began = int(self.events.start_ns[around])
                reached = max(start, began, self._worked_ns(around, end))
                stage = Stage(int(self.events.stage[around]))
                where = int(self.events.process[around])
                yield PathSegment(reached, end, stage, where, "before what followed")
            else:
                ended = [at for lane in lanes if (at := lane.ended(end - 1)) >= 0]
                reached = max([start, *(int(self.events.end_ns[at]) for at in ended)])
                yield PathSegment(reached, end, None, process, "")
            end = reached

    def _worked_ns(self, place: int, moment: int) -> int:
        """Until when the process of structure worked before a moment; 0 of work."""
        work = self.work.get(int(self.events.process[place]))
        if self.events.stage[place] != Stage.OTHER or work is None:
            return 0
        if work.open(moment - 1) >= 0:
            return moment
        last = work.ended(moment)
        return int(self.events.end_ns[last]) if last >= 0 else 0


def _by_step(path: tuple[PathSegment, ...], steps: Steps) -> tuple[Seconds, Ints]:
    """Seconds, and the number of stretches, by step and stage; the last column is unknown."""
    edges = np.array([s.start_ns for s in path] + [path[-1].end_ns], np.int64)
    stage = np.array([len(Stage) if s.stage is None else s.stage for s in path], np.int64)
    starts, ends = steps.starts_ns, steps.ends_ns
    cuts = np.unique(np.concatenate([edges, starts, ends]))
    left, length = cuts[:-1], np.diff(cuts)
    step = np.searchsorted(starts, left, side="right") - 1
    segment = np.searchsorted(edges, left, side="right") - 1
    inside = (left < ends[step]) & (segment < len(path))
    columns = len(Stage) + 1
    place = step[inside] * columns + stage[segment[inside]]
    size, shape = len(starts) * columns, (len(starts), columns)
    counts = np.bincount(place, minlength=size).astype(np.int64)
    return summed(place, length[inside] / 1e9, size).reshape(shape), counts.reshape(shape)


@dataclass(frozen=True)
class Stretch:
    """Steps of a long run from `first` on (places in `Steps.windows`), `seen` with margins."""

    first: int
    seen: range
    since_ns: int
    until_ns: int


def stretches(activity: Activity, steps: Steps, most_spans: int = MOST_SPANS) -> Sequence[Stretch]:
    windows = steps.windows
    count = -(-sum(activity.spans_of_stage.values()) // most_spans)
    size = -(-len(windows) // max(1, count))
    margin = -(-size // _MARGIN)
    found = []
    for first in range(0, len(windows), max(1, size)):
        last = min(first + size, len(windows)) - 1
        before, after = max(0, first - margin), min(last + margin, len(windows) - 1)
        since = windows[before].start_ns if before else -_ALWAYS
        until = windows[after].end_ns if after < len(windows) - 1 else _ALWAYS
        found.append(Stretch(first, range(before, after + 1), since, until))
    return found
