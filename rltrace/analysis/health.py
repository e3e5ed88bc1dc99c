"""Whether the job is well: crashes, failed steps, hangs, stalls, restarts, a fallen reward, figures
not finite.

Tuning advice for a job that is not well would be wrong, so these come before any verdict. An
*alarm* forbids advice; a *note* does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.alarm import ALARM, NAMED, NOTE, Alarm
from rltrace.analysis.codes import named
from rltrace.analysis.freshness import Freshness
from rltrace.analysis.generating import FEWEST_ALIKE
from rltrace.analysis.partial import partial
from rltrace.analysis.progress import crash, failed, hang, killed, lost, stuck_in_the_first
from rltrace.analysis.reward_curve import RewardCurve
from rltrace.analysis.samples import TRAINED_SAMPLES
from rltrace.analysis.stages import Breakdown
from rltrace.analysis.stalls import find_stalls, usual_s
from rltrace.analysis.steps import Steps
from rltrace.trace.signals import GIVEN_NAN
from rltrace.trace.vocabulary import Fate, Outcome, word

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_MOST_FAILED = 0.5


@dataclass(frozen=True)
class Health:
    """What is wrong with the run, alarms first."""

    alarms: tuple[Alarm, ...]

    @property
    def well(self) -> bool:
        """Whether nothing forbids tuning advice."""
        return not any(alarm.forbids for alarm in self.alarms)


def health(
    run: Run,
    activity: Activity,
    steps: Steps,
    breakdown: Breakdown,
    reward: RewardCurve | None,
    fresh: Freshness,
    recorded_until_ns: int,
) -> Health:
    """The health of `run`, whose recording ended at `recorded_until_ns` (Unix ns)."""
    usual = usual_s(steps, breakdown)
    found = [
        *partial(run, activity.untold),
        *crash(run, steps),
        *failed(run, steps),
        *hang(run, activity, steps, usual, recorded_until_ns),
        *stuck_in_the_first(run, activity, steps, recorded_until_ns),
        *lost(run, activity, usual, recorded_until_ns),
        *killed(run, activity),
        *_stalls(steps, breakdown),
        *_restarts(steps),
        *_reward(reward),
        *_verdicts(run),
        *_unused(run, steps),
        *_not_finite(run, steps, fresh),
        *_backwards(run),
        *_older_than_made(run),
    ]
    return Health(tuple(sorted(found, key=lambda alarm: alarm.severity != ALARM)))


def _stalls(steps: Steps, breakdown: Breakdown) -> list[Alarm]:
    found = find_stalls(steps, breakdown)
    if found is None:
        return []
    n = len(found.places)
    numbers = ", ".join(str(steps.windows[i].step) for i in found.places[:NAMED])
    dots = " …" if n > NAMED else ""
    where = "no span" if found.stage is None else word(found.stage)
    took = _seconds(found.took_s / n) + " each on average" * (n > 1)
    return [
        Alarm(
            "stall",
            ALARM if found.grave else NOTE,
            f"{n} step{'s' * (n > 1)} ({numbers}{dots}) stalled: {took} "
            f"where {_seconds(found.usual_s / n)} is usual, most of the difference in {where}; "
            f"that cost {100 * found.lost_share:.0f} % of the time of all steps after warm-up",
            beside=found.left_out,
        )
    ]


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _restarts(steps: Steps) -> list[Alarm]:
    if not steps.repeated:
        return []
    if len({window.process for window in steps.windows}) > 1:
        what = "step was" if steps.repeated == 1 else "steps were"
        return [Alarm("restart", ALARM, f"{steps.repeated} {what} done again after a restart")]
    what = "a step's number" if steps.repeated == 1 else f"the numbers of {steps.repeated} steps"
    says = f"{what} came again in one process, which counts as work done again"
    number = "where it is not, as each epoch counts from 0, number steps through: rltrace.step(n)"
    return [Alarm("restart", ALARM, f"{says}; {number}")]


def _reward(reward: RewardCurve | None) -> list[Alarm]:
    if reward is None or reward.collapse is None:
        return []
    fall = reward.collapse
    return [
        Alarm(
            "reward",
            ALARM,
            f"the reward fell at step {fall.step}, from {fall.before:.3g} to {fall.after:.3g}, and "
            "has not come back",
        )
    ]


def _not_finite(run: Run, steps: Steps, fresh: Freshness) -> list[Alarm]:
    alarms = []
    if fresh.infinite_ratios:
        alarms.append(f"samples with infinite importance ratios: {fresh.infinite_ratios}")
    rewards = run.sql("select count(*) from raw_rewards where start_ns > 0 and isinf(value)")
    if count := rewards.fetchall()[0][0]:
        alarms.append(f"infinite rewards: {count}")
    verdicts = not_numbers(run, steps)
    return [
        *([_not_numbers(verdicts)] if verdicts else []),
        *(Alarm("not finite", ALARM, text) for text in alarms),
        *(_diverged(one) for one in diverged(run, steps)),
    ]


def _not_numbers(one: Diverged) -> Alarm:
    verdicts = f"{one.not_finite} of {one.readings} verdict{'s' * (one.readings != 1)}"
    says = f"the reward was NaN in {verdicts}{_first(one)}"
    return Alarm("not finite", ALARM if one.grave else NOTE, says)


def _diverged(one: Diverged) -> Alarm:
    readings = f"{one.not_finite} of {one.readings} reading{'s' * (one.readings != 1)}"
    says = f"{one.counter} was NaN or infinite in {readings}{_first(one)}"
    return Alarm("not finite", ALARM if one.grave else NOTE, says)


def _first(one: Diverged) -> str:
    return "" if one.first_step is None else f", first in step {one.first_step}"


def _backwards(run: Run) -> list[Alarm]:
    """Rows that no order of events explains: clocks of nodes that could not be aligned, or that
    were set while the job ran."""
    counts = {"spans": "select sum(backwards) from span_stages"} | {
        table: f"select count(*) from raw_{table} where start_ns > 0 and end_ns >= 0 "
        "and end_ns < start_ns"
        for table in ("trajectories", "rewards", "syncs")
    }
    numbers = {table: run.ask(query)[0][0] for table, query in counts.items()}
    found = ", ".join(f"{n} of {table}" for table, n in numbers.items() if n)
    if not found:
        return []
    says = f"rows that end before they begin, which count nowhere ({found}): clocks out of order"
    return [Alarm("clocks", NOTE, says)]


def _older_than_made(run: Run) -> list[Alarm]:
    """Samples of a version that did not exist yet: both sides count, and not the same."""
    odd, known = run.ask(f"""
        {TRAINED_SAMPLES}
        select count(*) filter (version < first_version), count(*)
        from trained where version >= 0 and first_version is not null
    """)[0]
    if not odd:
        return []
    says = (
        f"{odd} of {known} samples were trained on by an older version than generated them: the "
        "learner and those who generate count versions differently, so that their lag says nothing"
    )
    return [Alarm("versions", NOTE, says)]


def _unused(run: Run, steps: Steps) -> list[Alarm]:
    """The learner met samples in steps that it completed, and trained on none of them."""
    if steps.whole_run or len(steps.windows) < FEWEST_ALIKE:
        return []
    fates = dict(
        run.ask("select coalesce(fate, -1), count(*) from sample_lives where is_met group by 1")
    )
    if not fates or fates.keys() & {int(Fate.TRAINED), -1}:
        return []
    why = ", ".join(f"{count} {named(Fate, fate)}" for fate, count in sorted(fates.items()))
    says = f"of {sum(fates.values())} samples that the learner met it trained on none ({why})"
    return [Alarm("unused", ALARM, says)]


def _verdicts(run: Run) -> list[Alarm]:
    """Most verdicts come to nothing: what is trained on then is not what the task asks for."""
    failed, whole = run.ask(
        f"select count(*) filter (outcome > {int(Outcome.OK)}), count(*) from raw_rewards "
        "where start_ns > 0 and outcome >= 0"
    )[0]
    if failed <= _MOST_FAILED * whole:
        return []
    return [Alarm("verdicts", ALARM, f"{failed} of {whole} verdicts failed or timed out")]


# --- losses, gradients and rewards that are no finite number: the job computes nothing from then on
# One such figure may be harmless: trainers skip an update whose gradient overflowed and go on. It
# is grave where the last reading is none either, or where they are many and not a single one.

_MANY = 0.1
_WATCHED = r"loss|grad.*norm|(^|[/_])(reward|score|return|advantage)s?([/_](mean|avg))?$"
_NOT_WATCHED = r"(^|/)(val|eval|test)|(^|[/_])(std|var|min|max)"
"""Counters by name. A deviation of one sample is NaN by nature, and so is a mean of an evaluation
that did not take place."""


@dataclass(frozen=True)
class Diverged:
    """A counter that was NaN or infinite: in how many of its readings, first in which step (None:
    before the first), and whether that is grave."""

    counter: str
    readings: int
    not_finite: int
    first_step: int | None
    grave: bool


def diverged(run: Run, steps: Steps) -> tuple[Diverged, ...]:
    """Losses, norms of gradients, rewards and their like that were not finite in `run`."""
    rows = run.ask(f"""
        select text, count(*), count(*) filter (not isfinite(value)),
               min(time_ns) filter (not isfinite(value)), isfinite(arg_max(value, time_ns))
        from raw_samples join names on names.id = counter
        where time_ns > 0 and regexp_matches(text, '{_WATCHED}', 'i')
              and not regexp_matches(text, '{_NOT_WATCHED}', 'i')
        group by text having count(*) filter (not isfinite(value)) > 0 order by text
    """)
    return tuple(
        Diverged(name, n, bad, _step_at(steps, at_ns), not last_ok or bad >= max(2, _MANY * n))
        for name, n, bad, at_ns, last_ok in rows
    )


def not_numbers(run: Run, steps: Steps) -> Diverged | None:
    """The verdicts that did not fail and are NaN all the same; None where there is none."""
    verdicts, bad, at_ns, last_bad = run.ask(f"""
        select count(*), count(*) filter (bad), min(end_ns) filter (bad), arg_max(bad, end_ns)
        from (select end_ns, {GIVEN_NAN} as bad, value from raw_rewards
              where start_ns > 0 and end_ns > 0)
        where bad or not isnan(value)
    """)[0]
    if not bad:
        return None
    grave = bool(last_bad) or bad >= max(2, _MANY * verdicts)
    return Diverged("rewards", verdicts, bad, _step_at(steps, at_ns), grave)


def _step_at(steps: Steps, time_ns: int) -> int | None:
    """The step that was the last to begin; figures are logged as it ends or just after."""
    if steps.whole_run:
        return None
    place = int(np.searchsorted([w.start_ns for w in steps.windows], time_ns, side="left")) - 1
    return steps.windows[place].step if place >= 0 else None
