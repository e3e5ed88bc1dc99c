"""The verdict on a run: which wall binds, what it rests on, and what to do about it.

A job that is not well gets its alarm first and no advice on tuning: figures of a run that crashes,
hangs or forgets describe that, and not the job. Of one in which few steps stalled the others tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.current import current_settings
from rltrace.analysis.fixes import Fix, bytes_take_time, fixes_for
from rltrace.analysis.framework import framework_of
from rltrace.analysis.health import Health
from rltrace.analysis.lint import Lint, lint
from rltrace.analysis.readiness import Control, readiness
from rltrace.analysis.walls.queues import Queues, queues
from rltrace.analysis.walls.rank import Ranking, rank
from rltrace.analysis.walls.wall import Seen
from rltrace.analysis.whatif.predict import Source
from rltrace.analysis.whatif.trust import OffTheRun, is_off, replay_error


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


def verdict(seen: Seen, health: Health, source: Source | None) -> Verdict:
    """The verdict; `source` is the run's workload for predictions (None: it cannot be replayed)."""
    ranking = rank(seen)
    alarms = tuple(alarm.says for alarm in health.alarms if alarm.forbids)
    fixes = () if alarms else _fixes(seen, ranking, source)
    load = seen.workload if source is not None else None
    return Verdict(
        **vars(ranking),
        queues=queues(seen),
        alarms=alarms,
        fixes=tuple(fix for fix in fixes if not fix.idle and not fix.loses),
        idle=tuple(fix.move for fix in fixes if fix.idle),
        slower=tuple(fix.move for fix in fixes if fix.loses),
        bytes_take_time=bytes_take_time(seen),
        replay_error=replay_error(load) if load else math.nan,
        unpredicted=str(OffTheRun(load)) if load and is_off(load) else "",
        lints=lint(seen),
        controls=readiness(seen),
    )


def _fixes(seen: Seen, ranking: Ranking, source: Source | None) -> tuple[Fix, ...]:
    if ranking.first is None:
        return ()
    framework = framework_of(seen.run)
    set_now = current_settings(seen.run, *framework)
    return fixes_for(seen, ranking, source, framework, set_now)
