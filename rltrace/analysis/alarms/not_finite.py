"""Losses, gradients and rewards that are no finite number: the job computes nothing from then on.

One such figure may be harmless: trainers skip an update whose gradient overflowed and go on. It is
grave where the last reading is none either, or where they are many and not a single one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rltrace.analysis.alarms.alarm import Said, alarm, grave, note
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.steps import Steps
from rltrace.trace.signals import GIVEN_NAN

_MANY = 0.1
_WATCHED = r"loss|grad.*norm|(^|[/_])(reward|score|return|advantage)s?([/_](mean|avg))?$"
_NOT_WATCHED = r"(^|/)(val|eval|test)|(^|[/_])(std|var|min|max)"
"""Counters by name. A deviation of one sample is NaN by nature, and so is a mean of an evaluation
that did not take place."""


@alarm("not finite", "its figures are not finite")
def not_finite(analysis: RunAnalysis) -> Iterator[Said]:
    run, steps = analysis.run, analysis.steps
    infinite = "select count(*) from raw_rewards where start_ns > 0 and isinf(value)"
    counts = {
        "samples with infinite importance ratios": analysis.freshness.infinite_ratios,
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
    yield from (_often(steps, *row) for row in verdicts)
    yield from (grave(f"{what}: {n}") for what, n in counts.items() if n)
    yield from (_often(steps, *row) for row in readings)


def _often(steps: Steps, what: str, of: str, n: int, bad: int, at_ns: int, last: bool) -> Said:
    """`bad` of `n` figures, the first logged at `at_ns` as its step ended or just after, and
    whether the `last` one was."""
    place = -1 if steps.whole_run else int(np.searchsorted(steps.starts_ns, at_ns)) - 1
    first = f", first in step {steps.windows[place].step}" if place >= 0 else ""
    says = f"{what} in {bad} of {n} {of}{'s' * (n != 1)}{first}"
    return grave(says) if last or bad >= max(2, _MANY * n) else note(says)
