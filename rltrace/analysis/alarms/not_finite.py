"""Losses, gradients and rewards that are no finite number: the job computes nothing from then on.

One such figure may be harmless: trainers skip an update whose gradient overflowed and go on. It is
grave where the last reading is none either, or where they are many and not a single one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rltrace.analysis.alarms.alarm import Said, alarm, grave, note
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.steps import Steps
from rltrace.trace.read.group_signals import GIVEN_NAN

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
    # Of verdicts those that did not fail and are NaN all the same.
    found = run.ask(f"""
        select what, kind, count(*), count(*) filter (bad), min(told_ns) filter (bad),
               arg_max(bad, told_ns)
        from (select 'the reward was NaN' as what, 'verdict' as kind, {GIVEN_NAN} as bad,
                     end_ns as told_ns
              from raw_rewards where start_ns > 0 and end_ns > 0 and (bad or not isnan(value))
              union all
              select text || ' was NaN or infinite', 'reading', not isfinite(value), time_ns
              from raw_samples join names on names.id = counter
              where time_ns > 0 and regexp_matches(text, '{_WATCHED}', 'i')
                    and not regexp_matches(text, '{_NOT_WATCHED}', 'i'))
        group by all having count(*) filter (bad) > 0 order by kind desc, what
    """)
    yield from (_often(steps, *row) for row in found)
    yield from (grave(f"{what}: {n}") for what, n in counts.items() if n)


def _often(steps: Steps, what: str, of: str, n: int, bad: int, at_ns: int, last: bool) -> Said:
    """`bad` of `n` figures, the first logged at `at_ns` as its step ended or just after, and
    whether the `last` one was."""
    place = -1 if steps.whole_run else int(np.searchsorted(steps.starts_ns, at_ns)) - 1
    first = f", first in step {steps.windows[place].step}" if place >= 0 else ""
    says = f"{what} in {bad} of {n} {of}{'s' * (n != 1)}{first}"
    return grave(says) if last or bad >= max(2, _MANY * n) else note(says)
