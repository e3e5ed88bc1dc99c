"""What a prediction rests on, and whether the replay fits its run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rltrace.analysis.whatif.replay import Replay, replay
from rltrace.analysis.whatif.workload import OVERLAPPING, Constants, StepWorkload, table
from rltrace.trace.errors import CANNOT_TELL, RltraceError

MOST_ERROR = 0.3
"""A replay that misses the measured step by more has another idea of who waits for whom than the
job had: a fit would hide that. Those of docs/whatif.md missed by 9 % at the most."""

_SOME_REST = 0.01  # of the step in no span; less is not worth a sentence
_MUCH_REST = 0.05


class OffTheRun(RltraceError):
    """The replay is not the run's: it predicts nothing."""

    def __init__(self, load: StepWorkload) -> None:
        factor = math.exp(abs(load.model_error))
        way = "long" if load.model_error > 0 else "short"
        by = f"a factor of {factor:.2g} (its steps are too {way})"
        if factor < 2:
            by = f"{100 * replay_error(load):+.0f} %"
        why = f"the replay of this run is off by {by}"
        if load.untold:
            why = f"{load.untold} is not known"
        how = "trying it would tell (`rltrace experiment`)"
        super().__init__(f"cannot be predicted: {why}; {how}", CANNOT_TELL)


def is_off(load: StepWorkload) -> bool:
    """Whether the replay of the run as it was misses its steps by too much, before any fit, or
    nobody knows for what its samples waited."""
    return abs(replay_error(load)) > MOST_ERROR or bool(load.untold)


def replay_error(load: StepWorkload) -> float:
    """Replayed over measured step before any fit, minus 1; NaN where no step was measured, or only
    the stage seconds that the replay is made of."""
    return math.expm1(load.model_error)


def otherwise(before: StepWorkload, after: StepWorkload) -> Iterator[tuple[str, Replay]]:
    """What else may come of the levers where the run does not tell, and a sentence on it. The
    answer is in the middle of both, and its range has both."""
    if not before.steps:
        return
    # A job that becomes asynchronous does not say what it then does with what comes too late.
    if after.placement == "async" != before.placement and before.drops_stale is None:
        says = "samples that come too late are dropped, or trained on: the range has both"
        yield says, replay(replace(after, drops_stale=True))
    changes = replay(before) != replay(after)
    # Batches that ran all at once, or a stream, come to have more on the way than there ever was:
    # no limit of the engines was seen, and one may be near.
    seen = before.engine.seen_at_once
    may = math.isfinite(seen) if before.streams else after.streams
    if may and changes and math.isinf(after.engine.slots):
        if math.isinf(seen):
            seen = max(len(batch.tokens) for batch in before.batches) / before.engine.workers
        says = "more sequences than a worker was seen to run at once are run, or wait"
        held = replay(replace(after, engine=replace(after.engine, slots=seen)))
        yield f"{says}: the range has both", held
    # Samples of a job that states no bound on their lag were not held up by one. Where nobody knows
    # how many a worker has room for, the lag that came stands for that.
    stays = before.placement == after.placement == "async" and before.lag_bound == after.lag_bound
    if stays and changes and not before.bound_stated and before.places_told:
        later = first = replay(after)
        if first.learner_waits_s > _SOME_REST * first.step_s:  # no more can be saved than that
            later = replay(replace(after, lag_bound=2 * before.lag_bound + 1))
        if first.step_s - later.step_s > _SOME_REST * first.step_s:
            came = f"no sample was more than {before.lag_bound:g} versions late"
            how = "they may come to be later, and the range has both"
            yield f"{came}, and the job states no bound: {how}", later
    if _rest_may_hold_up(before, after):
        found = replay(replace(after, rest_s=0.0))
        yield "", replace(found, step_s=found.step_s + after.rest_s)


def rests_on(
    before: StepWorkload, after: StepWorkload, constants: Constants, more: Sequence[str] = ()
) -> tuple[str, ...]:
    """What an answer rests on, in sentences; `more` are those of `otherwise`."""
    said = list(dict.fromkeys((*before.rests_on, *after.rests_on)))
    said += [*_measured(before), *_rest(before, after)]
    if before.shared and not after.shared:
        own = " : ".join(f"{after.devices[pool]:g}" for pool in ("rollout", "train"))
        said.append(f"devices are split {own} (rollout : training)")
    said += filter(None, more)
    return (*said, *(table()[name].sentence() for name in constants.used))


def _measured(load: StepWorkload) -> list[str]:
    """How many steps were measured, and how near to them the replay is."""
    if not load.steps:
        return []
    error = replay_error(load)
    steps = f"{load.steps} measured step{'s' * (load.steps != 1)}"
    if math.isnan(error):
        how = "the replay is made of these, and was held against nothing else"
        return [f"{steps}, of which the stage seconds are known and no samples: {how}"]
    return [f"{steps}; replayed as they were, before any fit, they take {100 * error:+.1f} %"]


def _rest(before: StepWorkload, after: StepWorkload) -> list[str]:
    share = before.rest_s / before.measured_step_s if before.measured_step_s else math.nan
    if not share > _SOME_REST:
        return []
    says = f"{100 * share:.0f} % of the step is not explained by the replay, and stays as it is"
    if _rest_may_hold_up(before, after):
        return [f"{says}: beside generation, or holding it up, and the range has both"]
    return [says if after.rest_s >= before.rest_s else f"{says}, in part"]


def _rest_may_hold_up(before: StepWorkload, after: StepWorkload) -> bool:
    """Whether what takes turns comes to run at once, and much of the measured step is in no span:
    of that nobody knows whether generation goes on beside it."""
    begins = after.placement in OVERLAPPING and before.placement not in OVERLAPPING
    return before.steps > 0 and begins and after.rest_s > _MUCH_REST * before.measured_step_s
