"""What forbids advice on a run, for whoever asks nothing else of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rltrace.analysis.activity import read_activity
from rltrace.analysis.alarm import ALARM, Alarm
from rltrace.analysis.cut_short import whole_steps
from rltrace.analysis.devices import count_devices
from rltrace.analysis.freshness import freshness
from rltrace.analysis.health import health
from rltrace.analysis.reward_curve import reward_curve
from rltrace.analysis.stages import break_down
from rltrace.analysis.staleness import staleness
from rltrace.analysis.steps import find_steps
from rltrace.trace.recorded import recorded_until

if TYPE_CHECKING:
    from rltrace.trace.run import Run


def alarms(run: Run) -> tuple[str, ...]:
    """The alarms of `run` that forbid advice in sentences, as its report has them; none where it is
    well."""
    return tuple(alarm.says for alarm in grave(run) if alarm.forbids)


def grave(run: Run) -> tuple[Alarm, ...]:
    """The alarms of `run` with their kinds."""
    return tuple(one for one in alarms_and_notes(run) if one.severity == ALARM)


def alarms_and_notes(run: Run) -> tuple[Alarm, ...]:
    """All that the report of `run` says of how well it was."""
    run = whole_steps(run)
    activity = read_activity(run)
    steps = find_steps(run, (activity.first_ns, activity.last_ns))
    breakdown = break_down(activity, steps)
    found = health(
        run,
        activity,
        steps,
        breakdown,
        reward_curve(run, steps, count_devices(run)),
        freshness(run, staleness(run)),
        recorded_until(run),
    )
    return tuple(found.alarms)
