"""Losses, gradients and rewards that are no finite number: the job computes nothing from then on.

One such figure may be harmless: trainers skip an update whose gradient overflowed and go on. It is
grave where the last reading is none either, or where they are many and not a single one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.steps import Steps
from rltrace.trace.signals import GIVEN_NAN

if TYPE_CHECKING:
    from rltrace.trace.run import Run

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
