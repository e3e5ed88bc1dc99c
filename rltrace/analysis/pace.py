"""How fast each role of a job could go if it never waited for another.

Where queues lie between roles that run all the time, a step takes as long as the slowest of them
needs for its samples: the actors, the verifiers, or the learner with the weights that it sends.
Neither exposed time nor the critical path tells that: whoever waits for room in a queue seems idle,
and two that wait in turn seem busy together. So work is added up by process, and divided by the
processes of a role. One that works on one sample after the other needs the time that it was seen to
work; one that works on many at once no more than that, and no less than if all its places were
always taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from rltrace.analysis.chains import Chain
from rltrace.analysis.composition import Composition, stated_placement
from rltrace.analysis.framework import is_laid_out
from rltrace.analysis.pieces import Pieces, read_pieces
from rltrace.analysis.roles import GENERATES, MOVES, Actors, Role, set_seconds, united
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.estimate import Estimate
from rltrace.analysis.stopped import stopped_latency_s, stopped_role, stopped_share
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Stage

_PASSES = (Stage.REFERENCE, Stage.LOGPROB, Stage.VALUE)
_ERROR = 0.11  # of a role's pace once it does not wait, as a logarithm: that of replays


@dataclass(frozen=True)
class Pace:
    """The roles of a job in which they go on beside each other. `step_s` is from the start of one
    step to that of the next, in the mean, and `samples` how many are made for it (0: nobody knows);
    `on_the_way` how many steps' samples are under way at most, and `latency_s` how long one is
    worked on by each stage. `if_stopped` is the same if generation stood still while weights were
    sent; None where that is known."""

    step_s: float
    samples: float
    learner: Role
    actors: tuple[Role, ...]
    on_the_way: float
    latency_s: dict[Stage, float]
    if_stopped: Pace | None = None

    @property
    def roles(self) -> tuple[Role, ...]:
        return (self.learner, *self.actors)

    @property
    def explained(self) -> float:
        """The part of the step that the slowest role is at work, at most 1. Little: roles wait for
        each other in turn."""
        return min(1.0, max(self._seconds(frozenset()).middle, 0.0) / self.step_s)

    @property
    def slowest(self) -> Role:
        return max(self.roles, key=lambda role: role.seconds().middle)

    def without(self, stages: Iterable[Stage]) -> Estimate:
        """What a step would take if some stages took no time: as long as the slowest of the others,
        or longer, where roles wait for each other in turn. A role that waits now may be faster or
        slower than it was seen to be once it does not, by `_ERROR`; the slowest one may not."""
        gone = frozenset(stages)
        left, explained = self._seconds(gone), self.explained
        if not explained:
            return Estimate(0.0, self.step_s / 2, self.step_s)
        slowest = self.slowest
        sure_s = slowest.seconds(gone).middle
        sure_s = sure_s if sure_s >= slowest.seconds().middle else 0.0
        return Estimate(
            max(sure_s, left.low * math.exp(-_ERROR)),
            left.middle * (1 + 1 / explained) / 2,
            left.high * math.exp(_ERROR) / explained,
        ).at_most(self.step_s)

    def _seconds(self, gone: frozenset[Stage]) -> Estimate:
        found = Estimate(0.0, 0.0, 0.0)
        for role in self.roles:
            found = found.longer(role.seconds(gone))
        # No more samples are made than there is room for on the way: lag bounds and full queues.
        round_s = self.learner.seconds(gone).middle
        round_s += sum(s for stage, s in self.latency_s.items() if stage not in gone)
        least = round_s / self.on_the_way if self.on_the_way else 0.0
        return found.longer(Estimate(least, least, least))

    def of_learner_s(self, stages: Iterable[Stage]) -> float:
        """Seconds a step by which the learner's own turn is shorter without these stages."""
        return self.learner.seconds().middle - self.learner.seconds(frozenset(stages)).middle


def find_pace(analysis: RunAnalysis) -> Pace | None:
    """The pace of the roles of the run; None where they wait for steps to end or a batch for the
    one before it, and where the work of the actors or of the learner was not seen."""
    run, composed = analysis.run, analysis.composition
    if composed is None or not _may_have_queues(run, composed):
        return None
    load = analysis.workload
    if load is not None and load.in_batches:
        return None
    steps, steady, chain_of = analysis.steps, analysis.steady, analysis.breakdown.chain_of
    since, until = steps.windows[steady[0]].start_ns, steps.windows[steady[-1]].end_ns
    pieces = read_pieces(analysis.activity, since, until)
    if not (composed.placement == "async" or _goes_on(pieces) or _actors_wait(run)):
        return None
    learner = _learner(pieces, chain_of, len(steady))
    actors = Actors(pieces, analysis.tracks, steps, (since, until), chain_of)
    roles = actors.roles(load.engine if load is not None else None)
    if learner is None or not any(role.name == "actors" for role in roles):
        return None
    found = Pace(
        step_s=(until - since) / 1e9 / len(steady),
        samples=actors.needed / len(steady),
        learner=learner,
        actors=roles,
        on_the_way=actors.on_the_way(),
        latency_s=actors.latency_s(),
    )
    stopped = stopped_share(run, pieces)
    if stopped is None:
        return found
    share, sure = stopped
    sent_s = found.of_learner_s(MOVES)
    other = replace(
        found,
        actors=tuple(stopped_role(role, share, sent_s) for role in roles),
        latency_s=stopped_latency_s(found.latency_s, share),
    )
    return other if sure else replace(found, if_stopped=other)


def _learner(pieces: Pieces, chain_of: dict[Stage, Chain], steps: int) -> Role | None:
    """All processes that train, and those of the passes beside it, do one thing after the other."""
    trainers = np.unique(pieces.process[pieces.stage == Stage.TRAIN])
    if not len(trainers):
        return None
    mine = [s for s, chain in chain_of.items() if chain is Chain.LEARNER and s is not Stage.OTHER]
    kept = np.isin(pieces.stage, [*mine, *MOVES]) & np.isin(pieces.process, trainers)
    kept |= np.isin(pieces.stage, [stage for stage in _PASSES if stage in mine])
    work = pieces.take(kept)
    return Role("learner", set_seconds(united(work.stage, work)), 1 / steps)


# --- whether queues lie between the roles of a job: each goes on as long as there is room, and none
# waits for a step to end.

_GOES_ON = 0.2  # of the time in which weights are sent


def _may_have_queues(run: Run, composed: Composition) -> bool:
    """Whether actors and learner run beside each other, in a placement that is asynchronous or that
    nobody stated: it is then told by lags, which are those of a batch ahead where room is small."""
    if not composed.beside or is_laid_out(run):
        return False
    return composed.placement == "async" or stated_placement(run) is None


def _goes_on(pieces: Pieces) -> bool:
    """Whether others generate while the learner sends weights. Where generation begins or ends with
    a step, they do not."""
    trains = np.isin(pieces.process, pieces.process[pieces.stage == Stage.TRAIN])
    moves = np.isin(pieces.stage, MOVES)
    both = pieces.take(moves & trains | np.isin(pieces.stage, GENERATES) & ~trains)
    name = np.where(np.isin(both.stage, MOVES), Stage.SYNC, Stage.ROLLOUT).astype(np.int64)
    set_s = set_seconds(united(name, both))
    sent = np.arange(len(set_s)) >> Stage.SYNC & 1 == 1
    together = sent & (np.arange(len(set_s)) >> Stage.ROLLOUT & 1 == 1)
    return float(set_s[together].sum()) > _GOES_ON * float(set_s[sent].sum())


def _actors_wait(run: Run) -> bool:
    """Whether processes that make samples say that they wait, in a loop of the user's own: for
    room. The engines of a framework wait for weights, too."""
    found = run.ask(f"""
        select process from span_stages where stage = {int(Stage.WAIT)}
        and process in (select process from raw_trajectories where start_ns > 0)
        and process not in (select process from span_stages where stage = {int(Stage.TRAIN)})
    """)
    own = {process.number for process in run.processes if not process.adapter}
    return any(process in own for (process,) in found)
