"""The roles of a job: how long a step takes each if it never waits for another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rltrace.analysis.chains import STAGES, Chain, Seconds, summed
from rltrace.analysis.followed import Followed
from rltrace.analysis.intervals import Bools, Ints, appended, of_spans, union
from rltrace.analysis.lanes import Lanes
from rltrace.analysis.pieces import Pieces
from rltrace.analysis.stats.estimate import Estimate
from rltrace.analysis.steps import Steps
from rltrace.analysis.whatif.workload import Engine
from rltrace.trace.vocabulary import Stage

GENERATES = (Stage.ROLLOUT, Stage.ENV)
MOVES = (Stage.SYNC, Stage.SWITCH)
TAKE_TURNS = 0.1
"""Stages of a process that overlap for less than this part of the shorter one take turns."""

_PASSES = (Stage.REFERENCE, Stage.LOGPROB)
_JUDGES = (Stage.REWARD,)
_TOLD = 0.5  # of the time in spans of verdicts
_MOVES = sum(1 << stage for stage in MOVES)


@dataclass(frozen=True)
class Rows:
    """What is known of a role's samples one by one: seconds in which they were worked on (in
    `stage`) over how many of a process were worked on at once, of all its processes; `tools_s` of
    their tools likewise. `alone` and `beside` are what a token takes of a lone sequence, and on top
    of that where all places are taken."""

    stage: Stage
    work_s: float
    tools_s: float
    alone: float = 1.0
    beside: float = 0.0

    def full_s(self, without: frozenset[Stage]) -> float:
        """Seconds for the same work where all places are taken."""
        work_s = 0.0 if self.stage in without else self.work_s
        return work_s + (0.0 if Stage.ENV in without else self.tools_s)

    def rate(self, used: float) -> float:
        """Pace with so large a part of the places taken, over that with all of them."""
        alone, beside = self.alone, self.beside
        return used * (alone + beside) / (alone + beside * used)


@dataclass(frozen=True)
class Role:
    """Processes that do the same. `set_s` is how long which set of stages (bit = stage code) ran in
    them, all together; `part` is what one of them has to do of that for a step."""

    name: str
    set_s: Seconds
    part: float
    rows: Rows | None = None

    def seconds(self, without: frozenset[Stage] = frozenset()) -> Estimate:
        """What a step takes this role, but for some stages."""
        kept = sum(1 << stage for stage in Stage if stage not in without)
        samples = kept & ~_MOVES
        high = self._seconds(samples)
        low = middle = high
        if self.rows is not None:
            low = self.rows.full_s(without)
            high = max(low, high)
            middle = high * self.rows.rate(low / high) if high else 0.0
        moves_s = self._seconds(kept) - self._seconds(samples)
        middle = max(middle, moves_s) if self._moves_aside else middle + moves_s
        bounds = max(low, moves_s), middle, high + moves_s
        return Estimate(*(seconds * self.part for seconds in bounds))

    @property
    def _moves_aside(self) -> bool:
        """Whether weights come in beside the work on samples, and hold none of it up."""
        masks = np.arange(len(self.set_s))
        moves, both = (masks & _MOVES != 0), masks & ~_MOVES != 0
        moves_s = float(self.set_s[moves].sum())
        return float(self.set_s[moves & both].sum()) > TAKE_TURNS * moves_s

    def does(self, stages: Iterable[Stage]) -> bool:
        """Whether any of these is among what it does."""
        return self._seconds(sum(1 << stage for stage in stages)) > 0

    def _seconds(self, bits: int) -> float:
        masks = np.arange(len(self.set_s))
        return float(self.set_s[masks & bits != 0].sum())


def united(group: Ints, pieces: Pieces) -> Pieces:
    """The union of each group over all processes, as that of one; the group stands for a stage."""
    one = union(of_spans(group, pieces.start_ns, pieces.end_ns))
    return Pieces(np.zeros_like(one.group), one.group, one.start, one.end)


def set_seconds(pieces: Pieces) -> Seconds:
    """Seconds for which exactly the stages of a set ran in a process, of all processes together, by
    the set (bit = stage code). Pieces of one process and stage do not overlap."""
    bit = np.left_shift(1, pieces.stage)
    times = np.concatenate([pieces.start_ns, pieces.end_ns])
    process = np.concatenate([pieces.process, pieces.process])
    order = np.lexsort((times, process))
    mask = np.cumsum(np.concatenate([bit, -bit])[order])[:-1]
    length = np.diff(times[order])
    some = (mask > 0) & (length > 0)
    return summed(mask[some], length[some] / 1e9, 1 << STAGES)


# --- the roles that make and judge samples: what they had to do for the steps, and with what


class Actors:
    """What processes did to the samples within a window `(from, to)` in ns: `pieces` are their work
    there, and `steps` those whose steady ones it is made of."""

    def __init__(
        self,
        pieces: Pieces,
        followed: Followed,
        steps: Steps,
        window: tuple[int, int],
        chain_of: dict[Stage, Chain],
    ) -> None:
        self.pieces, self.followed, self.window = pieces, followed, window
        self.steps, self.chain_of = steps, chain_of
        self.trainers = np.unique(pieces.process[pieces.stage == Stage.TRAIN])

    def roles(self, engine: Engine | None) -> tuple[Role, ...]:
        """The actors, the verifiers, those who do both in turn, and the passes on their side."""
        samples, verdicts = self.followed.samples, self.followed.verdicts
        timed = verdicts.end_ns > verdicts.start_ns
        made = self._over_made(np.flatnonzero(self._inside(samples.end_ns)))
        judged = self._over_made(verdicts.sample[self._inside(verdicts.end_ns)])
        generations = self._recorded(
            GENERATES, samples.process, samples.begin_ns, samples.end_ns, np.ones(len(samples)) > 0
        )
        scoring = self._recorded(
            _JUDGES, verdicts.process, verdicts.start_ns, verdicts.end_ns, timed
        )
        one_by_one = self._verdict_rows(timed)
        spans = self.pieces.take(np.isin(self.pieces.stage, _JUDGES))
        if not _tell(scoring, spans):
            scoring, one_by_one = spans, None
        found = [
            self._role("actors", generations, GENERATES, made, self._generations(engine)),
            self._role("rewards", scoring, _JUDGES, judged, one_by_one),
        ]
        both = np.intersect1d(generations.process, scoring.process)
        whole = appended([generations, scoring])
        whole = whole.take(np.isin(whole.process, both))
        if _in_turn(whole):
            found.append(self._role("actors", whole, (*GENERATES, *_JUDGES), made, None))
        for stage in _PASSES:
            if self.chain_of.get(stage) is Chain.ACTORS:
                work = self.pieces.take(self.pieces.stage == stage)
                found.append(self._role("passes", work, (stage,), made, None))
        return tuple(role for role in found if role is not None)

    def on_the_way(self) -> float:
        """Samples that are under way at once, at the most, in those of a step."""
        used, place = np.unique(self.followed.used_sample, return_index=True)
        if not len(used):
            return 0.0
        ends = np.array([window.end_ns for window in self.steps.windows], np.int64)
        until = ends[self.followed.used_step[place]]
        start = self.followed.samples.start_ns[used]
        lane = Lanes(np.zeros(len(used), np.int64), start, until, np.arange(len(used)))
        each = len(used) / len(np.unique(self.followed.used_step))
        return lane[0].capacity / each if lane else 0.0

    def latency_s(self) -> dict[Stage, float]:
        """Mean seconds for which a sample is worked on, by stage."""
        samples, verdicts = self.followed.samples, self.followed.verdicts
        found = {Stage.ROLLOUT: 0.0, Stage.ENV: 0.0, Stage.REWARD: 0.0}
        if len(samples):
            tools_s = float(samples.env_ns.mean()) / 1e9
            whole_s = float((samples.end_ns - samples.begin_ns).mean()) / 1e9
            found |= {Stage.ROLLOUT: whole_s - tools_s, Stage.ENV: tools_s}
        if len(verdicts.start_ns):
            found[Stage.REWARD] = float((verdicts.end_ns - verdicts.start_ns).mean()) / 1e9
        return found

    @cached_property
    def needed(self) -> float:
        """Samples that have to be made for the steady steps. Those that wait in queues as the run
        ends are none of them, and those that were dropped for good are."""
        followed, starts = self.followed, self.followed.samples.start_ns
        steady = np.isin(followed.used_step, list(self.steps.steady))
        used = np.unique(followed.used_sample[steady])
        if not len(used):
            return 0.0
        last = followed.used_sample[followed.used_step == followed.used_step[steady].max()]
        before = starts <= np.median(starts[last])
        taken = np.zeros(len(starts), np.bool_)
        taken[followed.used_sample] = True
        return len(used) * float(before.sum()) / max(1, int((before & taken).sum()))

    def _inside(self, moment: Ints) -> Bools:
        since, until = self.window
        return np.asarray((moment > since) & (moment <= until))

    def _over_made(self, samples: Ints) -> float:
        """The samples that are needed over those that this was done to; 1 where nobody knows."""
        done = len(np.unique(samples[samples >= 0]))
        return self.needed / done if self.needed and done else 1.0

    def _recorded(
        self, stages: tuple[Stage, ...], process: Ints, start: Ints, end: Ints, counted: Bools
    ) -> Pieces:
        """The work in these stages of the processes that have rows of it, or of all where none has.
        Where those have no spans of it, the time of their rows is that work."""
        pieces = self.pieces.take(np.isin(self.pieces.stage, stages))
        owners = np.unique(process[counted])
        if not len(owners):
            return pieces
        pieces = pieces.take(np.isin(pieces.process, owners))
        start, end = start.clip(*self.window), end.clip(*self.window)
        rest = counted & (end > start) & ~np.isin(process, pieces.process)
        rows = union(of_spans(process[rest], start[rest], end[rest]))
        stage = np.full(len(rows), int(stages[0]), np.int64)
        return appended([pieces, Pieces(rows.group, stage, rows.start, rows.end)])

    def _role(
        self, name: str, work: Pieces, stages: tuple[Stage, ...], each: float, rows: Rows | None
    ) -> Role | None:
        """`each`: the samples that are needed over those that were made."""
        if not len(work):
            return None
        processes = np.unique(work.process)
        own = np.setdiff1d(processes, self.trainers)  # who trains sends weights as the learner
        pieces = self.pieces
        moves = np.isin(pieces.stage, MOVES) & np.isin(pieces.process, own)
        set_s = set_seconds(appended([work, pieces.take(moves)]))
        return Role(name, set_s, each / len(processes) / len(self.steps.steady), rows)

    def _generations(self, engine: Engine | None) -> Rows | None:
        samples = self.followed.samples
        since, until = self.window
        start = samples.begin_ns.clip(since, until)
        end = samples.end_ns.clip(since, until)
        length = end - start
        whole = np.maximum(1, samples.end_ns - samples.begin_ns)
        tools = np.minimum(samples.env_ns, whole) * (length / whole)
        if not length.any():
            return None
        over = _at_once(samples.process, start, end, length > 0)
        alone, beside = 1.0, 0.0
        if engine is not None and engine.token_s > 0:
            _, first = np.unique(samples.process, return_index=True)
            alone = engine.token_s
            beside = engine.shared_token_s * float(over[first].mean()) / engine.stands_for
        work_s = float(((length - tools) / over).sum()) / 1e9
        return Rows(Stage.ROLLOUT, work_s, float((tools / over).sum()) / 1e9, alone, beside)

    def _verdict_rows(self, timed: Bools) -> Rows | None:
        verdicts = self.followed.verdicts
        start, end = (moment.clip(*self.window) for moment in (verdicts.start_ns, verdicts.end_ns))
        if not timed.any():
            return None
        over = _at_once(verdicts.process, start, end, timed)
        return Rows(Stage.REWARD, float(((end - start) / over).sum()) / 1e9, 0.0)


def _at_once(process: Ints, start: Ints, end: Ints, counted: Bools) -> Ints:
    """How many are worked on at once, at the most, in the process of each."""
    numbers, which = np.unique(process, return_inverse=True)
    lanes = Lanes(process, start, end, np.flatnonzero(counted))
    room = [max(1, lanes[int(n)].capacity) if int(n) in lanes else 1 for n in numbers]
    return np.array(room, np.int64)[which]


def _tell(rows: Pieces, spans: Pieces) -> bool:
    """Whether the work of processes that have verdicts is that of the stage: not where none of them
    has a span of it and others work much longer, as where one writes down what others judged."""
    rows_ns, spans_ns = (int((one.end_ns - one.start_ns).sum()) for one in (rows, spans))
    return bool(np.isin(spans.process, rows.process).any()) or rows_ns >= _TOLD * spans_ns


def _in_turn(work: Pieces) -> bool:
    """Whether processes generate and judge, and never both at once."""
    set_s = set_seconds(work)
    masks = np.arange(len(set_s))
    generates = masks & sum(1 << stage for stage in GENERATES) != 0
    judges = masks & 1 << Stage.REWARD != 0
    shorter = min(set_s[generates].sum(), set_s[judges].sum())
    return bool(shorter > 0 and set_s[generates & judges].sum() <= TAKE_TURNS * shorter)
