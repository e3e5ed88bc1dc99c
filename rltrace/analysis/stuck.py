"""What a step was stuck in when its job was ended: Ctrl-C ends the span that hangs, a kill not.

A hang that somebody ended looks like work that came to its end, but for how long it took.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_LONG_BY_NATURE = f"({int(Stage.STEP)}, {int(Stage.EVAL)}, {int(Stage.CHECKPOINT)})"


@dataclass(frozen=True)
class Stuck:
    """A span in which a step stood still, and for how long."""

    name: str
    seconds: float


def stuck_in(run: Run, step_start_ns: int, least_s: float, open_until_ns: int) -> Stuck | None:
    """The innermost span, of the process of the step that began then (Unix ns), that took more than
    `least_s`; one that is open counts until `open_until_ns`. None: there is none. Evaluations and
    checkpoints are long by nature."""
    found = run.ask(f"""
        select text, ns / 1e9 from (
            select name, process, start_ns,
                   case when end_ns < 0 then {open_until_ns} else end_ns end - start_ns as ns
            from raw_spans where start_ns >= {step_start_ns} and stage not in {_LONG_BY_NATURE}
                  and process in (select process from raw_spans where start_ns = {step_start_ns}
                                  and stage = {int(Stage.STEP)}))
        left join names on names.id = name
        where ns > {least_s * 1e9} order by start_ns desc limit 1
    """)
    return Stuck(str(found[0][0]), float(found[0][1])) if found else None


@dataclass(frozen=True)
class Silence:
    """A time in which nothing began or ended (Unix ns), and the spans that were open then."""

    since_ns: int
    until_ns: int
    names: tuple[str, ...]


def last_silence(run: Run, step_start_ns: int) -> Silence | None:
    """The longest silence after which nothing was begun any more: what was open then was ended with
    the job. None: there is none."""
    found = run.ask(f"""
        with moments as (
            select start_ns as moment from raw_spans where start_ns > 0 union all
            select end_ns from raw_spans where start_ns > 0 and end_ns > 0 union all
            select start_ns from raw_trajectories where start_ns > 0 union all
            select end_ns from raw_trajectories where start_ns > 0 and end_ns > 0),
        begun as (
            select greatest({step_start_ns},
                            (select max(start_ns) from raw_spans),
                            (select coalesce(max(start_ns), 0) from raw_trajectories)) as moment)
        select moment, then_ns from (
            select moment, lead(moment) over (order by moment) as then_ns from moments
            where moment >= (select moment from begun))
        where then_ns > moment order by then_ns - moment desc limit 1
    """)
    if not found:
        return None
    since_ns, until_ns = found[0]
    names = run.ask(f"""
        select text from raw_spans left join names on names.id = name
        where start_ns between {step_start_ns} and {since_ns} and stage <> {int(Stage.STEP)}
              and end_ns >= {until_ns} order by start_ns
    """)
    return Silence(since_ns, until_ns, tuple(str(name) for (name,) in names))
