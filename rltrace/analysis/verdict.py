"""The verdict on a run: which wall binds, what it rests on, and what to do about it.

A job with an alarm gets that first and no advice on tuning: figures of a run that crashes,
hangs or forgets describe that, and not the job. Of one in which few steps stalled the others tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.fixes import Fix, bytes_take_time, fixes_for
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.walls.rank import Ranking, rank
from rltrace.analysis.whatif.trust import OffTheRun, is_off, replay_error


@dataclass(frozen=True)
class Verdict(Ranking):
    """The walls as they are ranked, and what follows from it. `alarms` forbid advice: then `fixes`
    is empty. Fixes are in order of predicted gain for their effort; where none gains, "do nothing"
    is the advice (`do_nothing`). `no_gain` are moves that are predicted to change nothing and
    `not_worth_it` those that gain nothing for what they cost: they are no fixes. `bytes_take_time`:
    whether what a weight update sends may be why it takes so long; where it cannot, what would send
    it faster is no fix. `replay_error_share` is that of the replay which predicts the gains:
    replayed over measured step before any fit, minus 1 (NaN: there is none), and `unpredicted` says
    why none is."""

    alarms: tuple[str, ...]
    fixes: tuple[Fix, ...]
    no_gain: tuple[str, ...]
    not_worth_it: tuple[str, ...]
    bytes_take_time: bool
    replay_error_share: float
    unpredicted: str

    @property
    def do_nothing(self) -> bool:
        """Whether no fix with a predicted gain is known, though some were tried."""
        tried = [fix for fix in self.fixes if fix.goodput_gain is not None]
        return bool(tried or self.no_gain or self.not_worth_it) and not any(
            fix.gains for fix in tried
        )


def verdict(analysis: RunAnalysis, predict: bool = True) -> Verdict:
    """The verdict; without `predict`, which takes most of the time, no fix has a gain."""
    ranking, source = rank(analysis), analysis.source if predict else None
    alarms = analysis.health.forbids
    judged = ranking.first is not None and not alarms
    fixes = fixes_for(analysis, ranking, source) if judged else ()
    load = analysis.workload if predict else None
    return Verdict(
        **vars(ranking),
        alarms=alarms,
        fixes=tuple(fix for fix in fixes if not fix.idle and not fix.loses),
        no_gain=tuple(fix.move for fix in fixes if fix.idle),
        not_worth_it=tuple(fix.move for fix in fixes if fix.loses),
        bytes_take_time=bytes_take_time(analysis),
        replay_error_share=replay_error(load) if load else math.nan,
        unpredicted=str(OffTheRun(load)) if load and is_off(load) else "",
    )
