"""What a prediction rests on, and what else may come of the levers where the run does not tell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from rltrace.analysis.whatif.constants import Constants, table
from rltrace.analysis.whatif.replay import Replay, played, replay
from rltrace.analysis.whatif.trust import replay_error
from rltrace.analysis.whatif.workload import OVERLAPPING, Workload

_SOME_REST = 0.01  # of the step in no span; less is not worth a sentence
_MUCH_REST = 0.05
_SHARED_CORES = "shared_cores"


def otherwise(before: Workload, after: Workload) -> Iterator[tuple[Workload, Replay]]:
    """What else may come of the levers where the run does not tell. The answer is in the middle of
    both, and its range has both."""
    if _may_drop(before, after):
        other = replace(after, drops_stale=True)
        yield other, replay(other)
    if _more_at_once(before, after):
        engine = replace(after.engine, slots=_seen_at_once(before))
        other = replace(after, engine=engine)
        yield other, replay(other)
    if _may_lag_more(before, after):
        other = replace(after, lag_bound=_further(before))
        yield other, replay(other)
    if _rest_may_hold_up(before, after):
        other = replace(after, rest_s=0.0)
        found = replay(other)
        yield other, replace(found, step_s=found.step_s + after.rest_s)


def rests_on(before: Workload, after: Workload, constants: Constants) -> tuple[str, ...]:
    """What an answer rests on, in sentences."""
    said = list(dict.fromkeys((*before.rests_on, *after.rests_on)))
    said += measured(before)
    said += rest(before, after)
    if before.shared and not after.shared:
        own = " : ".join(f"{after.devices[pool]:g}" for pool in ("rollout", "train"))
        said.append(f"devices are split {own} (rollout : training)")
    if _may_drop(before, after):
        said.append("samples that come too late are dropped, or trained on: the range has both")
    if _more_at_once(before, after):
        said.append(
            "more sequences than a worker was seen to run at once are run, or wait: the range has "
            "both"
        )
    if _may_lag_more(before, after):
        said.append(
            f"no sample was more than {before.lag_bound:g} versions late, and the job states no "
            "bound: they may come to be later, and the range has both"
        )
    if before.one_more > 1 and _SHARED_CORES in constants.used:
        said.append(
            "other work keeps the cores busy: beside one more thread of the job each takes "
            f"{before.one_more:.2f} times as long again"
        )
    return (*said, *sentences(constants))


def measured(load: Workload) -> list[str]:
    """How many steps were measured, and how near to them the replay is."""
    if not load.steps:
        return []
    error = replay_error(load)
    steps = f"{load.steps} measured step{'s' * (load.steps != 1)}"
    if math.isnan(error):
        return [
            f"{steps}, of which the stage seconds are known and no samples: "
            "the replay is made of these, and was held against nothing else"
        ]
    return [f"{steps}; replayed as they were, before any fit, they take {100 * error:+.1f} %"]


def rest(before: Workload, after: Workload) -> list[str]:
    """What becomes of the time in no span."""
    share = before.rest_s / before.measured_step_s if before.measured_step_s else math.nan
    if not share > _SOME_REST:
        return []
    says = f"{100 * share:.0f} % of the step is in no stage that was seen, and stays as it is"
    if _rest_may_hold_up(before, after):
        return [f"{says}: beside generation, or holding it up, and the range has both"]
    return [says if after.rest_s >= before.rest_s else f"{says}, in part"]


def sentences(constants: Constants) -> tuple[str, ...]:
    """The constants that were used."""
    return tuple(table()[name].sentence() for name in constants.used)


def _may_drop(before: Workload, after: Workload) -> bool:
    """Whether the job becomes asynchronous, and does not say what it then does with what comes too
    late. How long its samples take was measured (a tail that was stated as a shape does not tell
    how many come too late)."""
    becomes = after.placement == "async" != before.placement
    return before.steps > 0 and becomes and before.drops_stale is None


def _more_at_once(before: Workload, after: Workload) -> bool:
    """Whether a job whose batches ran all at once comes to have more on the way than one of them,
    or one that streams may have more than it ever had: no limit of its engines was seen, and one
    may be near."""
    may = math.isfinite(before.engine.seen_at_once) if _streams(before) else _streams(after)
    changes = played(before) != played(after)
    return before.steps > 0 and may and changes and math.isinf(after.engine.slots)


def _may_lag_more(before: Workload, after: Workload) -> bool:
    """Whether samples of a job that states no bound on its lag may come to lag by more than they
    ever did: that they did not need not be what held them up. Where nobody knows how many a worker
    has room for, the lag that came stands for that."""
    stays = before.placement == after.placement == "async" and not before.bound_stated
    stays = stays and before.places_told
    changes = before.lag_bound == after.lag_bound and played(before) != played(after)
    if not (before.steps > 0 and stays and changes):
        return False
    first, other = replay(after).step_s, replay(replace(after, lag_bound=_further(before))).step_s
    return first - other > _SOME_REST * first


def _further(before: Workload) -> float:
    return 2 * before.lag_bound + 1


def _streams(load: Workload) -> bool:
    return load.placement == "async" or load.keeps_unfinished


def _seen_at_once(before: Workload) -> float:
    if math.isfinite(before.engine.seen_at_once):
        return before.engine.seen_at_once
    return max(len(batch.tokens) for batch in before.batches) / before.engine.workers


def _rest_may_hold_up(before: Workload, after: Workload) -> bool:
    """Whether what takes turns comes to run at once, and much of the measured step is in no span:
    of that nobody knows whether generation goes on beside it."""
    begins = after.placement in OVERLAPPING and before.placement not in OVERLAPPING
    return before.steps > 0 and begins and after.rest_s > _MUCH_REST * before.measured_step_s
