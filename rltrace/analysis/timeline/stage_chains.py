"""Which stage a piece of a step is charged to, by chains of stages.

A step is cut wherever a stage begins or ends in any process. In each piece some set of stages runs;
a piece with several is *exposed* time of one of them and *hidden* time of the rest:

1. `wait` yields to every stage, `other` to every stage but `wait`: waiting is no work, and a span
   around everything explains nothing.
2. What the lane does that opens the steps adds up, whatever it is: that is a chain. Stages of other
   lanes form three: actors (rollout, env, reward), learner (all that trains) and weights (sync,
   switch). Reference, log-probs and evaluation are on either side: `sides_of` finds out which.
3. Where that lane and others work at once, the piece goes to who goes on when the other has ended
   or waits (`waited_for`): shortening the others would change nothing. Else, a chain's time *alone*
   being when only stages of that chain run, it goes to the chain that is alone the longest in this
   step. If none that runs in the piece is alone for 2 % of the step, it goes to the lane of the
   steps or the learner, where that is running: a learner that never waits binds.
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

from rltrace.analysis.timeline.intervals import Bools, Ints
from rltrace.trace.vocabulary import Stage

Seconds = NDArray[np.float64]

STAGES = len(Stage)
OWN, OTHERS = 1, 2  # who is waited for
_IDLE = 1 << Stage.WAIT | 1 << Stage.OTHER
ALONE_SHARE = 0.02
"""A chain that is alone for less of the step than this does not show that it binds."""


class Chain(IntEnum):
    """Chains of stages that can run beside each other; the order breaks ties."""

    STEPS = 0
    LEARNER = 1
    ACTORS = 2
    WEIGHTS = 3


CHAIN_OF: dict[Stage, Chain] = {
    **dict.fromkeys((Stage.ROLLOUT, Stage.ENV, Stage.REWARD), Chain.ACTORS),
    **dict.fromkeys((Stage.REFERENCE, Stage.LOGPROB, Stage.VALUE, Stage.TRAIN), Chain.LEARNER),
    **dict.fromkeys((Stage.SYNC, Stage.SWITCH), Chain.WEIGHTS),
    **dict.fromkeys((Stage.DATA, Stage.CHECKPOINT, Stage.EVAL, Stage.OTHER), Chain.LEARNER),
}
"""Reference and behaviour log-probs run on training workers in most frameworks (verl, AReaL), and a
loop evaluates between its steps: these are the learner's unless `sides_of` finds otherwise."""

MOVES = (Stage.SYNC, Stage.SWITCH)

_EITHER_SIDE = (Stage.REFERENCE, Stage.LOGPROB, Stage.EVAL)
_BESIDE = 0.1  # stages that overlap for less of the one in question than this take turns


def sides_of(mask: Ints, seconds: Seconds, by_trainers: frozenset[Stage]) -> dict[Stage, Chain]:
    """The side of each stage in a run whose sets of running stages `mask` took `seconds`. What ran
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


def chains_of(
    own: Ints, others: Ints, seconds: Seconds, side_of: dict[Stage, Chain]
) -> dict[Stage, Chain]:
    """The chain of each stage: that of the steps' lane, which is in the stages `own` while those of
    `others` run elsewhere, where most of it runs there. Weights in which others have part are on
    their way to them. What runs elsewhere beside one stage of its side only may be a part of it."""
    of_own, of_others = _members(own).astype(float), _members(others).astype(float)
    own_s, others_s = seconds @ of_own, seconds @ of_others
    both_s = seconds @ np.maximum(of_own, of_others)
    beside_s = (of_others.T * seconds) @ of_own
    beside_s[:, Stage.OTHER], beside_s[np.diag_indices(STAGES)] = 0.0, 0.0
    chain_of = dict(side_of)
    for stage, side in side_of.items():
        taken = stage in MOVES and others_s[stage] > _BESIDE * own_s[stage]
        mostly = 2 * own_s[stage] >= both_s[stage] > 0 and not taken
        most, total_s = Stage(int(np.argmax(beside_s[stage]))), beside_s[stage].sum()
        only = beside_s[stage, most] >= (1 - _BESIDE) * total_s > _BESIDE * others_s[stage]
        if mostly or (only and side_of.get(most) is side):
            chain_of[stage] = Chain.STEPS
    return chain_of


def waited_for(own: Ints, others: Ints, times: Ints, least: float, later: int) -> tuple[Ints, int]:
    """Of pieces between `times`, in which the steps' lane and others are in these stages: who goes
    on alone, where both work, the lane (`OWN`) or others (`OTHERS`), else 0; and who is the first
    that does. `later` is that after these pieces. Idle for less than `least` is a gap."""
    busy = [_edges(some & ~_IDLE != 0, times, least) for some in (own, others)]
    first = np.unique(np.concatenate(busy))[:-1]
    is_own, is_others = (np.searchsorted(at, first, side="right") % 2 == 1 for at in busy)
    after = np.where(is_own != is_others, np.arange(len(first)), len(first))[::-1]
    goes_on = np.append(np.where(is_own, OWN, OTHERS), later)[np.minimum.accumulate(after)[::-1]]
    sizes = np.diff(np.append(first, len(own)))
    return np.repeat(np.where(is_own & is_others, goes_on, 0), sizes), int(goes_on[0])


def _edges(busy: Bools, times: Ints, least: float) -> Ints:
    """Pieces at which it begins to be busy and ends, in turns."""
    idle = np.flatnonzero(np.diff(busy, prepend=True, append=True)).reshape(-1, 2)
    idle = idle[times[idle[:, 1]] - times[idle[:, 0]] >= least]
    return np.concatenate([[0], idle.ravel(), [len(busy)]])


def working(mask: Ints) -> Ints:
    """Sets of stages (bit = stage code) without those that yield to others in the set (rule 1)."""
    wait, other = 1 << Stage.WAIT, 1 << Stage.OTHER
    awake = np.where(mask & ~wait, mask & ~wait, mask)
    return np.where(awake & ~other, awake & ~other, awake)


def exposed_stage(
    step: Ints, own: Ints, others: Ints, waited: Ints, seconds: Seconds, steps_s: Seconds,
    chain_of: dict[Stage, Chain],
) -> Ints:  # fmt: skip
    """The stage that each piece is charged to, -1 where no span is. A piece is all the time of a
    step (`step`: its place in `steps_s`, the steps' lengths) in which the steps' lane and others
    were in exactly these stages, and `waited` was the same; `seconds` is how long."""
    if not len(own):
        return np.zeros(0, np.int64)
    aside = others & ~own & ~sum(1 << s for s, chain in chain_of.items() if chain is Chain.STEPS)
    mask, on_others = own | others, (waited == OTHERS) & (aside != 0)
    bound = np.select([waited == OWN, on_others], [mask & ~aside, aside], mask)
    of_chain = [[s for s in chain_of if chain_of[s] == chain] for chain in Chain]

    def members(runs: Ints) -> tuple[Bools, Bools]:
        member = _members(working(runs))
        return member, np.stack([member[:, some].any(axis=1) for some in of_chain], axis=1)

    alone, chain_alone = (_by_step(step, one, seconds, len(steps_s)) for one in members(mask))
    member, chains = members(bound)
    claim = np.where(chains, chain_alone[step], -1.0)
    chain = np.argmax(claim, axis=1)
    undecided = claim.max(axis=1) < ALONE_SHARE * steps_s[step]
    for one in (Chain.LEARNER, Chain.STEPS):
        chain = np.where(undecided & chains[:, one], int(one), chain)

    code = np.array([int(chain_of.get(stage, -1)) for stage in Stage])
    candidate = member & (code == chain[:, None])
    candidate = np.where(candidate.any(axis=1)[:, None], candidate, member)  # wait alone
    stage = np.argmax(np.where(candidate, alone[step], -1.0), axis=1)
    return np.where(member.any(axis=1), stage, -1)


def _members(runs: Ints) -> Bools:
    """Sets as rows of a matrix that has a column for each stage."""
    return np.asarray((runs[:, None] >> np.arange(STAGES)) & 1 == 1)


def summed(place: Ints, seconds: Seconds, size: int) -> Seconds:
    return np.bincount(place, weights=seconds, minlength=size).astype(np.float64)


def _by_step(step: Ints, member: NDArray[np.bool_], seconds: Seconds, steps: int) -> Seconds:
    """Seconds for which each column is the only member of its row, by step."""
    single = member.sum(axis=1) == 1
    columns = member.shape[1]
    place = step[single] * columns + np.argmax(member[single], axis=1)
    return summed(place, seconds[single], steps * columns).reshape(steps, columns)
