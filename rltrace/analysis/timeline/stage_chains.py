"""Which stage a piece of a step is charged to, by chains of stages.

A step is cut wherever a stage begins or ends in any process. In each piece some set of stages runs;
a piece with several is *exposed* time of one of them and *hidden* time of the rest:

1. `wait` yields to every stage, `other` to every stage but `wait`: waiting is no work, and a span
   around everything explains nothing.
2. Stages form three chains: actors (rollout, env, reward), learner (all that trains) and weights
   (sync, switch). Reference, log-probs and evaluation are on either side: `chains_of` finds out
   which. A chain's time *alone* is when only stages of that chain run. The piece goes to the chain
   that is alone the longest in this step: shortening the others would change nothing.
3. If no chain that runs in the piece is alone for 2 % of the step, it goes to the learner where
   that is running: steps are counted there, and a learner that never waits binds.
4. Within the chain the piece goes to the stage that is alone (no other stage at all) the longest,
   on a tie to the first in the vocabulary.

So exposed times, wait included, and untraced time (no span) add up to the step. It is the rule of
the longer of two chains, applied to what was measured; only an experiment that delays a stage can
prove what it says.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.timeline.intervals import Ints
from rltrace.trace.vocabulary import Stage

Seconds = NDArray[np.float64]

STAGES = len(Stage)
ALONE_SHARE = 0.02
"""A chain that is alone for less of the step than this does not show that it binds."""


class Chain(IntEnum):
    """Chains of stages that can run beside each other; the order breaks ties."""

    LEARNER = 0
    ACTORS = 1
    WEIGHTS = 2


CHAIN_OF: dict[Stage, Chain] = {
    **dict.fromkeys((Stage.ROLLOUT, Stage.ENV, Stage.REWARD), Chain.ACTORS),
    **dict.fromkeys((Stage.REFERENCE, Stage.LOGPROB, Stage.VALUE, Stage.TRAIN), Chain.LEARNER),
    **dict.fromkeys((Stage.SYNC, Stage.SWITCH), Chain.WEIGHTS),
    **dict.fromkeys((Stage.DATA, Stage.CHECKPOINT, Stage.EVAL, Stage.OTHER), Chain.LEARNER),
}
"""Reference and behaviour log-probs run on training workers in most frameworks (verl, AReaL), and a
loop evaluates between its steps: these are the learner's unless `chains_of` finds otherwise."""

MOVES = (Stage.SYNC, Stage.SWITCH)

_EITHER_SIDE = (Stage.REFERENCE, Stage.LOGPROB, Stage.EVAL)
_BESIDE = 0.1  # stages that overlap for less of the one in question than this take turns


def chains_of(mask: Ints, seconds: Seconds, by_trainers: frozenset[Stage]) -> dict[Stage, Chain]:
    """The chain of each stage in a run whose sets of running stages `mask` took `seconds`. What ran
    where training did (`by_trainers`) is the learner's. Else the stages of a chain take turns, so
    reference, log-probs and evaluation are the actors' where they run beside training, or beside
    the actors although training never does."""
    actors = sum(1 << stage for stage, chain in CHAIN_OF.items() if chain is Chain.ACTORS)

    def beside(stage: Stage, others: int) -> bool:
        runs = mask >> stage & 1 == 1
        both = runs & (mask & others != 0)
        return bool(seconds[both].sum() > _BESIDE * seconds[runs].sum())

    with_actors = 0 if beside(Stage.TRAIN, actors) else actors
    others = 1 << Stage.TRAIN | with_actors
    moved = [s for s in _EITHER_SIDE if s not in by_trainers and beside(s, others)]
    return CHAIN_OF | dict.fromkeys(moved, Chain.ACTORS)


def working(mask: Ints) -> Ints:
    """Sets of stages (bit = stage code) without those that yield to others in the set (rule 1)."""
    wait, other = 1 << Stage.WAIT, 1 << Stage.OTHER
    awake = np.where(mask & ~wait, mask & ~wait, mask)
    return np.where(awake & ~other, awake & ~other, awake)


def exposed_stage(
    step: Ints, mask: Ints, seconds: Seconds, steps_s: Seconds, chain_of: dict[Stage, Chain]
) -> Ints:
    """The stage that each piece is charged to, -1 where no span is. A piece is all the time of a
    step (`step`: its place in `steps_s`, the steps' lengths) in which exactly the stages in `mask`
    ran; `seconds` is how long."""
    if not len(mask):
        return np.zeros(0, np.int64)
    runs = working(mask)
    member = (runs[:, None] >> np.arange(STAGES)) & 1 == 1
    of_chain = ([s for s in chain_of if chain_of[s] == chain] for chain in Chain)
    chains = np.stack([member[:, stages].any(axis=1) for stages in of_chain], axis=1)
    alone = _by_step(step, member, seconds, len(steps_s))
    chain_alone = _by_step(step, chains, seconds, len(steps_s))

    claim = np.where(chains, chain_alone[step], -1.0)
    chain = np.argmax(claim, axis=1)
    undecided = claim.max(axis=1) < ALONE_SHARE * steps_s[step]
    chain = np.where(undecided & chains[:, Chain.LEARNER], int(Chain.LEARNER), chain)

    code = np.array([int(chain_of.get(stage, -1)) for stage in Stage])
    candidate = member & (code == chain[:, None])
    candidate = np.where(candidate.any(axis=1)[:, None], candidate, member)  # wait alone
    stage = np.argmax(np.where(candidate, alone[step], -1.0), axis=1)
    return np.where(member.any(axis=1), stage, -1)


def summed(place: Ints, seconds: Seconds, size: int) -> Seconds:
    return np.bincount(place, weights=seconds, minlength=size).astype(np.float64)


def _by_step(step: Ints, member: NDArray[np.bool_], seconds: Seconds, steps: int) -> Seconds:
    """Seconds for which each column is the only member of its row, by step."""
    single = member.sum(axis=1) == 1
    columns = member.shape[1]
    place = step[single] * columns + np.argmax(member[single], axis=1)
    return summed(place, seconds[single], steps * columns).reshape(steps, columns)
