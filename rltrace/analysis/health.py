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
from rltrace.analysis.alarm import ALARM, LOST_SHARE, NAMED, NOTE, STALL_TIMES, Alarm
from rltrace.analysis.chains import Seconds
from rltrace.analysis.codes import named
from rltrace.analysis.freshness import Freshness
from rltrace.analysis.not_finite import Diverged, diverged, not_numbers
from rltrace.analysis.progress import crash, failed, hang, lost, stuck_in_the_first
from rltrace.analysis.reward_curve import RewardCurve
from rltrace.analysis.samples import SAMPLES, TRAINED_SAMPLES
from rltrace.analysis.stages import Breakdown
from rltrace.analysis.steps import Steps
from rltrace.trace.vocabulary import Fate, Outcome, Stage, word

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_FEWEST_STEPS = 3
_LEAST_STALL_S = 0.1
"""What is less than this beyond the usual is the scheduler's doing on a busy machine, no stall."""

_MOST_FAILED = 0.5
_NO_STALL = (Stage.EVAL, Stage.CHECKPOINT)  # they are long by nature


@dataclass(frozen=True)
class Health:
    """What is wrong with the run, alarms first."""

    alarms: tuple[Alarm, ...]

    @property
    def well(self) -> bool:
        """Whether nothing forbids tuning advice."""
        return not any(alarm.severity == ALARM for alarm in self.alarms)


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
    usual_s = _usual_s(steps, breakdown)
    found = [
        *crash(run, steps),
        *failed(run, steps),
        *hang(run, steps, usual_s, recorded_until_ns),
        *stuck_in_the_first(run, activity, steps, recorded_until_ns),
        *lost(run, activity, usual_s, recorded_until_ns),
        *_stalls(steps, breakdown, usual_s),
        *_restarts(steps),
        *_reward(reward),
        *_verdicts(run),
        *_unused(run, steps),
        *_not_finite(run, steps, fresh),
        *_backwards(run),
        *_older_than_made(run),
    ]
    return Health(tuple(sorted(found, key=lambda alarm: alarm.severity != ALARM)))


def _usual_s(steps: Steps, breakdown: Breakdown) -> float:
    """Median length of a steady step without evaluation and checkpoints; NaN for too few."""
    steady = list(steps.steady)
    if steps.whole_run or len(steady) < _FEWEST_STEPS:
        return float("nan")
    return float(np.median(_own_s(breakdown)[steady]))


def _own_s(breakdown: Breakdown) -> Seconds:
    own: Seconds = breakdown.steps_s - breakdown.exposed_s[:, list(_NO_STALL)].sum(axis=1)
    return own


def _stalls(steps: Steps, breakdown: Breakdown, usual_s: float) -> list[Alarm]:
    steady = [i for i in steps.steady if not steps.whole_run]
    own_s = _own_s(breakdown)
    alike_s = _usual_of_its_kind_s(steady, own_s, breakdown, usual_s)
    least_s = np.maximum(STALL_TIMES * alike_s, alike_s + _LEAST_STALL_S)
    stalled = [i for i in steady if own_s[i] > least_s[i]]
    while stalled and stalled[0] == steady[0]:  # slow first steps are warm-up, in a short run too
        stalled, steady = stalled[1:], steady[1:]
    if not stalled:
        return []
    lost_s = float((own_s[stalled] - alike_s[stalled]).sum())
    share = lost_s / float(breakdown.steps_s[steady].sum())
    usual = np.median(breakdown.exposed_s[steady], axis=0)
    more = (breakdown.exposed_s[stalled] - usual).sum(axis=0)
    idle_s = float(
        (breakdown.unattributed_s[stalled] - np.median(breakdown.unattributed_s[steady])).sum()
    )
    worst = int(np.argmax(more))
    where = "in no span" if idle_s > more[worst] else f"in {word(Stage(worst))}"
    numbers = ", ".join(str(steps.windows[i].step) for i in stalled[:NAMED])
    dots = " …" if len(stalled) > NAMED else ""
    word_ = "step" if len(stalled) == 1 else "steps"
    return [
        Alarm(
            "stall",
            ALARM if share >= LOST_SHARE else NOTE,
            f"{len(stalled)} {word_} ({numbers}{dots}) took more than {STALL_TIMES:g} times the "
            f"usual one, most of it {where}: {100 * share:.0f} % of the steady time",
        )
    ]


def _usual_of_its_kind_s(
    steady: list[int], own_s: Seconds, breakdown: Breakdown, usual_s: float
) -> Seconds:
    """What each step usually takes. Where samples are generated once for several updates, steps
    that generate are compared with each other: they are long by design."""
    generates = breakdown.tau_s[:, Stage.ROLLOUT] > 0
    kinds = [[i for i in steady if generates[i] == kind] for kind in (True, False)]
    found = np.full(len(own_s), usual_s)
    if all(len(kind) >= _FEWEST_STEPS for kind in kinds):
        for kind in kinds:
            found[kind] = np.median(own_s[kind])
    return found


def _restarts(steps: Steps) -> list[Alarm]:
    if not steps.repeated:
        return []
    what = "step was" if steps.repeated == 1 else "steps were"
    return [Alarm("restart", ALARM, f"{steps.repeated} {what} done again after a restart")]


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
    counts = {
        table: run.sql(
            f"select count(*) from raw_{table} where start_ns > 0 and end_ns >= 0 "
            "and end_ns < start_ns"
        ).fetchall()[0][0]
        for table in ("spans", "trajectories", "rewards", "syncs")
    }
    found = ", ".join(f"{n} of {table}" for table, n in counts.items() if n)
    if not found:
        return []
    says = f"rows that end before they begin, which count nowhere ({found}): clocks out of order"
    return [Alarm("clocks", NOTE, says)]


def _older_than_made(run: Run) -> list[Alarm]:
    """Samples of a version that did not exist yet: both sides count, and not the same."""
    odd, known = run.sql(f"""
        {TRAINED_SAMPLES}
        select count(*) filter (version < first_version), count(*)
        from trained where version >= 0 and first_version is not null
    """).fetchall()[0]
    if not odd:
        return []
    says = (
        f"{odd} of {known} samples were trained on by an older version than generated them: the "
        "learner and those who generate count versions differently, so that their lag says nothing"
    )
    return [Alarm("versions", NOTE, says)]


def _unused(run: Run, steps: Steps) -> list[Alarm]:
    """The learner met samples in steps that it completed, and trained on none of them."""
    if steps.whole_run or len(steps.windows) < _FEWEST_STEPS:
        return []
    fates = dict(
        run.sql(f"{SAMPLES} select coalesce(fate, -1), count(*) from fates group by 1").fetchall()
    )
    if not fates or fates.keys() & {int(Fate.TRAINED), -1}:
        return []
    why = ", ".join(f"{count} {named(Fate, fate)}" for fate, count in sorted(fates.items()))
    says = f"of {sum(fates.values())} samples that the learner met it trained on none ({why})"
    return [Alarm("unused", ALARM, says)]


def _verdicts(run: Run) -> list[Alarm]:
    """Most verdicts come to nothing: what is trained on then is not what the task asks for."""
    failed, whole = run.sql(
        f"select count(*) filter (outcome > {int(Outcome.OK)}), count(*) from raw_rewards "
        "where start_ns > 0 and outcome >= 0"
    ).fetchall()[0]
    if failed <= _MOST_FAILED * whole:
        return []
    return [Alarm("verdicts", ALARM, f"{failed} of {whole} verdicts failed or timed out")]
