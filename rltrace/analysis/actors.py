"""The roles that make and judge samples: what they had to do for the steps, and with what."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from rltrace.analysis.chains import Chain
from rltrace.analysis.followed import Followed
from rltrace.analysis.intervals import Bools, Ints, of_spans, union
from rltrace.analysis.lanes import Lanes
from rltrace.analysis.pieces import Pieces
from rltrace.analysis.roles import GENERATES, MOVES, TAKE_TURNS, Role, Rows, set_seconds
from rltrace.analysis.steps import Steps
from rltrace.analysis.whatif.workload import Engine
from rltrace.trace.vocabulary import Stage

_PASSES = (Stage.REFERENCE, Stage.LOGPROB)
_JUDGES = (Stage.REWARD,)
_TOLD = 0.5  # of the time in spans of verdicts


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
        whole = _joined(generations, scoring)
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
        inside: Bools = (moment > since) & (moment <= until)
        return inside

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
        none = np.zeros_like(process[rest])
        rows = union(of_spans(process[rest], start[rest], end[rest], none))
        stage = np.full(len(rows), int(stages[0]), np.int64)
        return _joined(pieces, Pieces(rows.group, stage, rows.start, rows.end))

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
        set_s = set_seconds(_joined(work, pieces.take(moves)))
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


def _joined(one: Pieces, other: Pieces) -> Pieces:
    return Pieces(
        *(
            np.concatenate([getattr(part, name) for part in (one, other)])
            for name in ("process", "stage", "start_ns", "end_ns")
        )
    )
