"""How long responses are and how long they take: the tail that a barrier waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.codes import named
from rltrace.analysis.spread import Spread, spread_of
from rltrace.analysis.steps import Steps
from rltrace.trace.vocabulary import Finish

if TYPE_CHECKING:
    from rltrace.trace.run import Run


@dataclass(frozen=True)
class Tail:
    """The trajectories that ended after warm-up; tokens and seconds. `finishes` counts how they
    ended (a word of the vocabulary or "unknown"); `unended` began, in the whole run, and did not
    end. `verdict_s` is the latency of the verdicts whose duration was recorded, `verdicts_untimed`
    are the others; `verdict_failures` of both failed."""

    response_tokens: Spread
    latency_s: Spread
    first_token_s: Spread
    finishes: tuple[tuple[str, int], ...]
    unended: int
    verdict_s: Spread
    verdicts_untimed: int
    verdict_failures: int


def tail(run: Run, steps: Steps) -> Tail:
    """The tail of `run`."""
    steady = [steps.windows[i] for i in steps.steady]
    since = steady[0].start_ns if steady and not steps.whole_run else 0
    ended = f"raw_trajectories where start_ns > 0 and end_ns >= start_ns and end_ns >= {since}"
    judged = f"raw_rewards where start_ns > 0 and end_ns >= start_ns and end_ns >= {since}"
    rows = run.sql(f"select finish, count(*) from {ended} group by finish order by 2 desc")
    unended = run.sql("select count(*) from raw_trajectories where start_ns > 0 and end_ns < 0")
    untimed, failed = run.sql(
        f"select count(*) filter (end_ns = start_ns), count(*) filter (outcome > 0) from {judged}"
    ).fetchall()[0]
    return Tail(
        response_tokens=spread_of(run, "response_tokens", f"{ended} and response_tokens >= 0"),
        latency_s=spread_of(run, "(end_ns - start_ns) / 1e9", ended),
        first_token_s=spread_of(
            run, "(first_token_ns - start_ns) / 1e9", f"{ended} and first_token_ns >= start_ns"
        ),
        finishes=tuple((named(Finish, code), n) for code, n in rows.fetchall()),
        unended=unended.fetchall()[0][0],
        verdict_s=spread_of(run, "(end_ns - start_ns) / 1e9", f"{judged} and end_ns > start_ns"),
        verdicts_untimed=untimed,
        verdict_failures=failed,
    )
