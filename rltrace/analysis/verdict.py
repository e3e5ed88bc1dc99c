"""The verdict on a run: which wall binds, what it rests on, and what to do about it.

A job that is not well gets its alarm first and no advice on tuning: figures of a run that crashes,
hangs or forgets describe that, and not the job. Of one in which few steps stalled the others tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.chains import Chain
from rltrace.analysis.differing import current_settings
from rltrace.analysis.fixes import Fix, bytes_take_time, fixes_for
from rltrace.analysis.framework import framework_of
from rltrace.analysis.lint import Lint, lint
from rltrace.analysis.readiness import Control, readiness
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.walls.rank import Ranking, rank
from rltrace.analysis.whatif.trust import OffTheRun, is_off, replay_error
from rltrace.trace.vocabulary import Stage


@dataclass(frozen=True)
class Verdict(Ranking):
    """The walls as they are ranked, and what follows from it. `alarms` forbid advice: then `fixes`
    is empty. Fixes are in order of predicted gain for their effort; where none gains, "do nothing"
    is the advice (`do_nothing`). `idle` are moves that are predicted to change nothing and
    `slower` those that gain nothing for what they cost: they are no fixes.
    `bytes_take_time`: whether what a weight update sends may be why it takes so long; where it
    cannot, what would send it faster is no fix. `replay_error` is that of the replay which predicts
    the gains: replayed over measured step before any fit, minus 1 (NaN: there is none), and
    `unpredicted` says why none is. `lints` are the anti-patterns, `controls` the readiness
    checklist."""

    queues: Queues | None
    alarms: tuple[str, ...]
    fixes: tuple[Fix, ...]
    idle: tuple[str, ...]
    slower: tuple[str, ...]
    bytes_take_time: bool
    replay_error: float
    unpredicted: str
    lints: tuple[Lint, ...]
    controls: tuple[Control, ...]

    @property
    def do_nothing(self) -> bool:
        """Whether no fix with a predicted gain is known, though some were tried."""
        tried = [fix for fix in self.fixes if fix.goodput_gain is not None]
        return bool(tried or self.idle or self.slower) and not any(fix.gains for fix in tried)


def verdict(analysis: RunAnalysis, predict: bool = True) -> Verdict:
    """The verdict; without `predict`, which takes most of the time, no fix has a gain."""
    ranking, source = rank(analysis), analysis.source if predict else None
    alarms = analysis.health.forbids
    fixes: tuple[Fix, ...] = ()
    if ranking.first is not None and not alarms:
        framework = framework_of(analysis.run)
        set_now = current_settings(analysis.run, *framework)
        fixes = fixes_for(analysis, ranking, source, framework, set_now)
    load = analysis.workload if predict else None
    return Verdict(
        **vars(ranking),
        queues=queues(analysis),
        alarms=alarms,
        fixes=tuple(fix for fix in fixes if not fix.idle and not fix.loses),
        idle=tuple(fix.move for fix in fixes if fix.idle),
        slower=tuple(fix.move for fix in fixes if fix.loses),
        bytes_take_time=bytes_take_time(analysis),
        replay_error=replay_error(load) if load else math.nan,
        unpredicted=str(OffTheRun(load)) if load and is_off(load) else "",
        lints=lint(analysis),
        controls=readiness(analysis),
    )


# --- who starves whom: how many samples each role could deliver if it never waited
# A job takes as many samples a second as the slowest of its actors, its verdicts and its learner.
# Rates are samples of a step over the time that the role was at work in it, or each process of it
# where queues lie between them, so they compare roles that run beside each other; in a placement
# that takes turns none of them starves another.

_ALIKE = 1.1


@dataclass(frozen=True)
class Queues:
    """Samples a second while at work (NaN: not seen). `slowest` is the role that sets the pace,
    `starved` are the roles that could go at least 1.1 times as fast; empty where all take turns."""

    actors: float
    rewards: float
    learner: float
    slowest: str
    starved: tuple[str, ...]


def queues(analysis: RunAnalysis) -> Queues | None:
    """The rates; None where no sample was recorded, or no step."""
    samples, steady = float(analysis.tail.latency_s.n), analysis.steady
    if not samples or not steady:
        return None
    breakdown = analysis.breakdown
    busy_s = {
        "actors": float(breakdown.tau_s[steady, Stage.ROLLOUT].sum()),
        "rewards": float(breakdown.tau_s[steady, Stage.REWARD].sum()),
        "learner": float(breakdown.chain_s[steady, Chain.LEARNER].sum()),
    }
    pace = analysis.pace
    if pace is not None and pace.samples:  # by process, with the weights that are sent
        samples = pace.samples
        busy_s |= {r.name: r.seconds().middle for r in pace.roles if r.name in busy_s}
    rates = {role: samples / s if s else math.nan for role, s in busy_s.items()}
    known = {role: rate for role, rate in rates.items() if not math.isnan(rate)}
    slowest = min(known, key=known.__getitem__) if known else ""
    beside = analysis.composition is not None and analysis.composition.beside
    starved = tuple(
        role for role, rate in known.items() if beside and rate > _ALIKE * known[slowest]
    )
    return Queues(rates["actors"], rates["rewards"], rates["learner"], slowest, starved)
