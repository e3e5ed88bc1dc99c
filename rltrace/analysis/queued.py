"""Whether queues lie between the roles of a job: each goes on as long as there is room, and none
waits for a step to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.composition import Composition, stated_placement
from rltrace.analysis.framework import is_laid_out
from rltrace.analysis.pieces import Pieces
from rltrace.analysis.roles import GENERATES, MOVES, set_seconds, united
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_BESIDE = 0.1  # of the shorter of both chains; less is a job that takes turns
_GOES_ON = 0.2  # of the time in which weights are sent


def may_have_queues(run: Run, composed: Composition | None) -> bool:
    """Whether actors and learner run beside each other, in a placement that is asynchronous or that
    nobody stated: it is then told by lags, which are those of a batch ahead where room is small."""
    if composed is None or composed.overlap_share <= _BESIDE or is_laid_out(run):
        return False
    return composed.placement == "async" or stated_placement(run) is None


def has_queues(run: Run, composed: Composition, pieces: Pieces) -> bool:
    """Whether they do, of a run that may."""
    return composed.placement == "async" or _goes_on(pieces) or _actors_wait(run)


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
