"""Whether the job is well. Tuning advice for one that is not would be wrong, so this comes before
any verdict: an *alarm* forbids advice; a *note* does not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.analysis.alarm import ALARM, NAMED, NOTE, Alarm
from rltrace.analysis.codes import named
from rltrace.analysis.coverage import partial
from rltrace.analysis.generating import FEWEST_ALIKE
from rltrace.analysis.progress import crash, failed, hang, killed, lost, stuck_in_the_first
from rltrace.analysis.reward_curve import RewardCurve
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.samples import TRAINED_SAMPLES
from rltrace.analysis.stages import Breakdown
from rltrace.analysis.stalls import find_stalls, usual_s
from rltrace.analysis.steps import Steps
from rltrace.trace.run import Run
from rltrace.trace.signals import GIVEN_NAN
from rltrace.trace.vocabulary import Fate, Outcome, word

_MOST_FAILED = 0.5


@dataclass(frozen=True)
class Health:
    """What is wrong with the run, alarms first."""

    alarms: tuple[Alarm, ...]

    @property
    def forbids(self) -> tuple[str, ...]:
        return tuple(alarm.says for alarm in self.alarms if alarm.forbids)

    @property
    def well(self) -> bool:
        return not self.forbids


def health(analysis: RunAnalysis) -> Health:
    run, activity, steps = analysis.run, analysis.activity, analysis.steps
    until_ns, usual = analysis.until_ns, usual_s(steps, analysis.breakdown)
    found = [
        *partial(run, activity.untold),
        *crash(run, steps),
        *failed(run, steps),
        *hang(run, activity, steps, usual, until_ns),
        *stuck_in_the_first(run, activity, steps, until_ns),
        *lost(run, activity, usual, until_ns),
        *killed(run, activity),
        *_stalls(steps, analysis.breakdown),
        *_restarts(steps),
        *_reward(analysis.reward),
        *_verdicts(run),
        *_unused(run, steps),
        *_not_finite(run, steps, analysis.freshness.infinite_ratios),
        *_backwards(run),
        *_older_than_made(run),
        *_repeated_ids(run),
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
    says = (
        f"{n} step{'s' * (n > 1)} ({numbers}{dots}) stalled: {took} "
        f"where {_seconds(found.usual_s / n)} is usual, most of the difference in {where}; "
        f"that cost {100 * found.lost_share:.0f} % of the time of all steps after warm-up"
    )
    return [Alarm("stall", ALARM if found.grave else NOTE, says, beside=found.left_out)]


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
    levels = f"from {fall.before:.3g} to {fall.after:.3g}"
    says = f"the reward fell at step {fall.step}, {levels}, and has not come back"
    return [Alarm("reward", ALARM, says)]


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


def _repeated_ids(run: Run) -> list[Alarm]:
    """Samples whose ids came again (`rltrace.trace.repeated_ids`)."""
    told, unclear = run.ids_that_came_again()
    found = []
    if told:
        found.append(f"{told} after it was trained on: each time is taken for another sample")
    if unclear:
        lost = "their lags, groups and rewards are unknown"
        found.append(f"{unclear} while it was generated or waited for training: {lost}")
    says = "; ".join(f"ids of samples came again, {one}" for one in found)
    return [Alarm("ids", NOTE, says + ". Give each sample an id of its own")] if found else []


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
    """Where most come to nothing, what is trained on is not what the task asks for."""
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


def _not_finite(run: Run, steps: Steps, infinite_ratios: int) -> list[Alarm]:
    infinite = "select count(*) from raw_rewards where start_ns > 0 and isinf(value)"
    counts = {
        "samples with infinite importance ratios": infinite_ratios,
        "infinite rewards": run.ask(infinite)[0][0],
    }
    # Verdicts that did not fail and are NaN all the same.
    verdicts = run.ask(f"""
        select 'the reward was NaN', 'verdict', count(*), count(*) filter (bad),
               min(end_ns) filter (bad), arg_max(bad, end_ns)
        from (select end_ns, {GIVEN_NAN} as bad, value from raw_rewards
              where start_ns > 0 and end_ns > 0)
        where bad or not isnan(value) having count(*) filter (bad) > 0
    """)
    readings = run.ask(f"""
        select text || ' was NaN or infinite', 'reading', count(*), count(*) filter (bad),
               min(time_ns) filter (bad), arg_max(bad, time_ns)
        from (select *, not isfinite(value) as bad from raw_samples)
             join names on names.id = counter
        where time_ns > 0 and regexp_matches(text, '{_WATCHED}', 'i')
              and not regexp_matches(text, '{_NOT_WATCHED}', 'i')
        group by text having count(*) filter (bad) > 0 order by text
    """)
    return [
        *(_often(steps, *row) for row in verdicts),
        *(Alarm("not finite", ALARM, f"{what}: {n}") for what, n in counts.items() if n),
        *(_often(steps, *row) for row in readings),
    ]


def _often(steps: Steps, what: str, of: str, n: int, bad: int, at_ns: int, last: bool) -> Alarm:
    """`bad` of `n` figures, the first logged at `at_ns` as its step ended or just after, and
    whether the `last` one was."""
    place = -1 if steps.whole_run else int(np.searchsorted(steps.starts_ns, at_ns)) - 1
    first = f", first in step {steps.windows[place].step}" if place >= 0 else ""
    severity = ALARM if last or bad >= max(2, _MANY * n) else NOTE
    says = f"{what} in {bad} of {n} {of}{'s' * (n != 1)}{first}"
    return Alarm("not finite", severity, says)
