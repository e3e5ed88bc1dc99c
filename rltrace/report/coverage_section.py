"""What was recorded, what was not, and what tracing cost the job."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rltrace.analysis.coverage import Coverage
from rltrace.analysis.own_cost import OwnCost
from rltrace.analysis.summary import Summary
from rltrace.report import run_lines, units
from rltrace.report.layout import Section, labelled, listed
from rltrace.report.walls_section import model_check
from rltrace.trace.run_dir import RECORDING_STOPPED

_MOST_PROBLEMS = 12


def coverage_section(summary: Summary) -> Section:
    seen = summary.coverage
    reasons: dict[str, list[str]] = {}
    for stage in seen.unseen:
        reasons.setdefault(stage.reason, []).append(labelled(stage.name, stage.symbol))
    _, facts = run_lines.facts(summary)
    lines = [f"{facts}."]
    if check := model_check(summary.verdict, summary.steps.step_s.mean):
        lines.append(check)
    lines += [f"Not recorded: {', '.join(names)}: {why}." for why, names in reasons.items()]
    if seen.never_hooked:
        lines.append(f"Asked for, never put in place: --hook {listed(seen.never_hooked)}.")
    lines += _problem_lines(seen)
    if seen.clock_bound_ns < 0:
        lines.append("Clocks: one node could not be aligned with the others; its times may be off.")
    elif seen.clock_bound_ns:
        bound = units.seconds(seen.clock_bound_ns / 1e9)
        lines.append(f"Clocks: nodes are aligned within {bound}.")
    if not summary.run.imported:  # it was not traced
        lines.append(_own_cost(summary.own_cost))
    return Section("What was recorded", tuple(lines))


def _problem_lines(seen: Coverage) -> Iterator[str]:
    told = [problem for problem in seen.problems if problem.what != RECORDING_STOPPED]
    for problem in told[:_MOST_PROBLEMS]:
        targets = ", ".join(problem.targets)
        more = f" and {problem.more_targets} more" if problem.more_targets else ""
        where = f" ({targets}{more})" if targets else ""
        detail = f": {problem.detail}" if problem.detail else ""
        times = f" × {problem.count}" if problem.count > 1 else ""
        times += " or more" if problem.at_least else ""
        yield f"{problem.what}{times}{where}{detail}".rstrip(".") + "."
    if len(told) > _MOST_PROBLEMS:
        others = units.plural(len(told) - _MOST_PROBLEMS, "more kind")
        yield f"{others} of problems: `rltrace info` lists all."


def _own_cost(cost: OwnCost) -> str:
    if not cost.events:
        return "Tracing cost: no event was recorded."
    source = "measured here" if cost.calibrated else "a usual value"
    events = units.plural(cost.events, "event")
    text = f"Tracing cost: {events} × {cost.event_cost_ns:,.0f} ns"
    if cost.tokens:
        text += f" and {cost.tokens:,} captured tokens × {cost.token_cost_ns:,.0f} ns"
    text += f" ({source})"
    if math.isnan(cost.share):
        return f"{text}; its share of the processes' time is not known."
    share, worst = units.share(cost.share), units.share(cost.worst_share)
    return f"{text} = {share} of the processes' time, {worst} in the busiest."
