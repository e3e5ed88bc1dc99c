"""Whether the job is well: crashes, failed steps, hangs, stalls, restarts, a fallen reward, figures
not finite.

Tuning advice for a job that is not well would be wrong, so these come before any verdict. An
*alarm* forbids advice; a *note* does not.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.activity import Activity
from rltrace.analysis.coverage import STEP_FAILED
from rltrace.analysis.freshness import Freshness
from rltrace.analysis.not_finite import Diverged, diverged
from rltrace.analysis.reward_curve import RewardCurve
from rltrace.analysis.stages import Breakdown
from rltrace.analysis.steps import Steps
from rltrace.trace.liveness import Liveness
from rltrace.trace.vocabulary import Outcome, Stage, word

if TYPE_CHECKING:
    from rltrace.trace.run import Run

ALARM = "alarm"
NOTE = "note"

STALL_TIMES = 3.0
"""A step that takes this many times the usual one stalled."""
_LOST_SHARE = 0.1  # stalls that cost less of the run than this are a note
_FEWEST_STEPS = 3
_SILENT_S = 30.0
"""A first step in which nothing begins or ends for so long may be stuck, where it is silent for
`STALL_TIMES` times as long as it worked."""
_MOST_FAILED = 0.5
_NAMED = 5
_NO_STALL = (Stage.EVAL, Stage.CHECKPOINT)  # they are long by nature
_NO_HANG = (Stage.STEP, Stage.WAIT, Stage.OTHER)
_BY_HAND = {signal.SIGINT, signal.SIGTERM}


@dataclass(frozen=True)
class Alarm:
    """One thing that is wrong: its kind ("crash", "failed steps", "hang", "lost process", "stall",
    "restart", "reward", "verdicts", "not finite", "clocks"), how grave it is (`ALARM` or `NOTE`),
    and a sentence."""

    kind: str
    severity: str
    says: str


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
        *_crash(run, steps),
        *_failed(run, steps),
        *_hang(run, steps, usual_s, recorded_until_ns),
        *_stuck_in_the_first(run, activity, steps, recorded_until_ns),
        *_lost(run, activity, usual_s, recorded_until_ns),
        *_stalls(steps, breakdown, usual_s),
        *_restarts(steps),
        *_reward(reward),
        *_verdicts(run),
        *_not_finite(run, steps, fresh),
        *_backwards(run),
    ]
    return Health(tuple(sorted(found, key=lambda alarm: alarm.severity != ALARM)))


def _usual_s(steps: Steps, breakdown: Breakdown) -> float:
    """Median length of a steady step without evaluation and checkpoints; NaN for too few."""
    steady = list(steps.steady)
    if steps.whole_run or len(steady) < _FEWEST_STEPS:
        return float("nan")
    return float(np.median(_own_s(breakdown)[steady]))


def _own_s(breakdown: Breakdown) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    own: np.ndarray[tuple[int], np.dtype[np.float64]] = breakdown.steps_s - breakdown.exposed_s[
        :, list(_NO_STALL)
    ].sum(axis=1)
    return own


def _crash(run: Run, steps: Steps) -> list[Alarm]:
    code = run.meta.get("exit_code")
    done = 0 if steps.whole_run else len(steps.windows)
    plural = f"{done} complete step{'s' * (done != 1)}"
    when = f"after {plural}" if done else "before its first step was complete"
    if steps.in_progress:
        last = steps.in_progress[-1][0]
        error = _errors(run).get(last)
        when = f"in step {last}{f' ({error})' if error else ''}, {when}"
    if not isinstance(code, int):
        says = f"the job ended {when}, and nobody saw how: killed, or the machine went down"
        return [Alarm("crash", NOTE if done else ALARM, says)] if _killed_unseen(run) else []
    if code == 0:
        return []
    number = -code if code < 0 else code - 128
    how = f"signal {number}" if code < 0 else f"exit code {code}"
    if number in list(signal.Signals):
        how = f"{how}, {signal.Signals(number).name}"
    asked = run.meta.get("signals")
    by_hand = [s for s in asked if s in _BY_HAND] if isinstance(asked, list) else []
    if by_hand and number not in _BY_HAND:  # it took Ctrl-C, and ended with a code of its own
        how = f"{signal.Signals(by_hand[0]).name}, then {how}"
    if number in _BY_HAND or by_hand:
        return [Alarm("crash", NOTE, f"the job was ended from outside ({how})")]
    return [Alarm("crash", ALARM, f"the job failed ({how}) {when}")]


def _killed_unseen(run: Run) -> bool:
    """Whether the job is over although whoever was to see it end did not."""
    if run.meta.get("imported") or not isinstance(run.meta.get("command_pid"), int):
        return False
    if run.meta.get("end_real_ns") is not None:  # the agent wrote it
        return True
    return Liveness().of_command(run.meta) is False


def _failed(run: Run, steps: Steps) -> list[Alarm]:
    """Steps that an exception left, and the job went on: they are in no figure of a step."""
    errors = _errors(run)
    numbers = [number for number, _, _ in steps.failed]
    if not run.meta.get("exit_code"):  # else it is what the job failed of
        numbers += [number for number, _ in steps.in_progress if number in errors]
    if not numbers:
        return []
    known = [errors[number] for number in numbers if number in errors]
    why = f" ({known[0]})" if known else ""
    begun = len(numbers) + (0 if steps.whole_run else len(steps.windows))
    shown = ", ".join(map(str, numbers[:_NAMED])) + " …" * (len(numbers) > _NAMED)
    severity = ALARM if len(numbers) >= _LOST_SHARE * begun else NOTE
    says = f"{len(numbers)} of {begun} steps ({shown}) failed{why}"
    return [Alarm("failed steps", severity, f"{says}: no figure of a step has them in it")]


def _errors(run: Run) -> dict[int, str]:
    """The exceptions that steps were left by, by their number."""
    found = [problem for problem in run.problems if problem.get("what") == STEP_FAILED]
    return {
        int(str(problem["target"])): str(problem.get("detail") or "")
        for problem in reversed(found)
        if re.fullmatch(r"-?\d+", str(problem.get("target")))
    }


def _hang(run: Run, steps: Steps, usual_s: float, until_ns: int) -> list[Alarm]:
    if np.isnan(usual_s) and not steps.whole_run:  # too few: by the longest, with its warm-up
        usual_s = max((window.length_s for window in steps.windows), default=float("nan"))
    errors, least_s = _errors(run), STALL_TIMES * usual_s
    if run.meta.get("exit_code"):  # to end takes a job some seconds, too
        least_s = max(least_s, _SILENT_S)
    last = steps.windows[-1].end_ns if steps.windows and not steps.whole_run else 0
    return [
        Alarm(
            "hang",
            ALARM,
            f"step {number} had been in progress for {(until_ns - start) / 1e9 / usual_s:.0f} "
            "times the usual step when the recording ended",
        )
        for number, start in steps.in_progress
        if number not in errors and start >= last and (until_ns - start) / 1e9 > least_s
    ]


def _stuck_in_the_first(run: Run, activity: Activity, steps: Steps, until_ns: int) -> list[Alarm]:
    """No step tells how long one takes: what tells is that nothing happens any more."""
    if not steps.none_complete:
        return []
    number, start = steps.in_progress[-1]
    if number in _errors(run):
        return []
    sign = max(start, activity.last_ns)
    worked_s, silent_s = (sign - start) / 1e9, (until_ns - sign) / 1e9
    if silent_s < max(_SILENT_S, STALL_TIMES * worked_s):
        return []
    names = dict.fromkeys(s.name for s in activity.open_spans if s.stage is not Stage.STEP)
    inside = ", ".join(f"“{name}”" for name in [*names][-_NAMED:])
    return [
        Alarm(
            "hang",
            ALARM,
            f"step {number}, the first, had not ended after {(until_ns - start) / 1e9:.0f} s, and "
            f"for the last {silent_s:.0f} s nothing began or ended: it is stuck in "
            f"{inside or 'no span'}" + (", unless that takes so long" if inside else ""),
        )
    ]


def _lost(run: Run, activity: Activity, usual_s: float, until_ns: int) -> list[Alarm]:
    """Processes that fell silent in the middle of their work while others went on."""
    role_of = {process.number: process.role or "a process" for process in run.processes}
    silent = {
        span.process: span
        for span in activity.open_spans
        if span.stage not in _NO_HANG
        and (activity.last_ns - span.last_sign_ns) / 1e9 > STALL_TIMES * usual_s
    }
    by_role: dict[str, list[str]] = {}
    for number, span in silent.items():
        by_role.setdefault(role_of.get(number, "a process"), []).append(span.name)
    return [
        Alarm(
            "lost process",
            ALARM,
            f"{len(names)} of role {role} fell silent in “{names[0]}” and the job went on "
            f"for more than {STALL_TIMES:g} usual steps",
        )
        for role, names in by_role.items()
    ]


def _stalls(steps: Steps, breakdown: Breakdown, usual_s: float) -> list[Alarm]:
    steady = [i for i in steps.steady if not steps.whole_run]
    own_s = _own_s(breakdown)
    stalled = [i for i in steady if own_s[i] > STALL_TIMES * usual_s]
    while stalled and stalled[0] == steady[0]:  # slow first steps are warm-up, in a short run too
        stalled, steady = stalled[1:], steady[1:]
    if not stalled:
        return []
    lost_s = float((own_s[stalled] - usual_s).sum())
    share = lost_s / float(breakdown.steps_s[steady].sum())
    usual = np.median(breakdown.exposed_s[steady], axis=0)
    more = (breakdown.exposed_s[stalled] - usual).sum(axis=0)
    idle_s = float(
        (breakdown.unattributed_s[stalled] - np.median(breakdown.unattributed_s[steady])).sum()
    )
    worst = int(np.argmax(more))
    where = "in no span" if idle_s > more[worst] else f"in {word(Stage(worst))}"
    numbers = ", ".join(str(steps.windows[i].step) for i in stalled[:_NAMED])
    dots = " …" if len(stalled) > _NAMED else ""
    word_ = "step" if len(stalled) == 1 else "steps"
    return [
        Alarm(
            "stall",
            ALARM if share >= _LOST_SHARE else NOTE,
            f"{len(stalled)} {word_} ({numbers}{dots}) took more than {STALL_TIMES:g} times the "
            f"usual one, most of it {where}: {share:.0%} of the steady time",
        )
    ]


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
    return [
        *(Alarm("not finite", ALARM, text) for text in alarms),
        *(_diverged(one) for one in diverged(run, steps)),
    ]


def _diverged(one: Diverged) -> Alarm:
    when = "" if one.first_step is None else f", first in step {one.first_step}"
    readings = f"{one.not_finite} of {one.readings} reading{'s' * (one.readings != 1)}"
    says = f"{one.counter} was NaN or infinite in {readings}{when}"
    return Alarm("not finite", ALARM if one.grave else NOTE, says)


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


def _verdicts(run: Run) -> list[Alarm]:
    """Most verdicts come to nothing: what is trained on then is not what the task asks for."""
    failed, whole = run.sql(
        f"select count(*) filter (outcome > {int(Outcome.OK)}), count(*) from raw_rewards "
        "where start_ns > 0 and outcome >= 0"
    ).fetchall()[0]
    if failed <= _MOST_FAILED * whole:
        return []
    return [Alarm("verdicts", ALARM, f"{failed} of {whole} verdicts failed or timed out")]
