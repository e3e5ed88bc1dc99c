"""Files that could not be read whole, in words: said first, since every figure is short of them."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.coverage import AsOf
from rltrace.report import units
from rltrace.report.layout import listed, pid_on
from rltrace.trace.damage import Damaged
from rltrace.trace.dropped import Dropped
from rltrace.trace.reach import clock_time
from rltrace.trace.schema import CAPTURED_TOKENS

_MOST = 3
_NOW_S = 1.0  # what is younger is as of now


def dropped_lines(dropped: Dropped | None) -> Iterator[str]:
    """What was dropped to keep the run small, a sentence each; nothing where nothing was."""
    if dropped is None:
        return
    tokens = dropped.rows.get(CAPTURED_TOKENS.name, 0)
    where = " and are at its URL" if dropped.is_shipped else ""
    if details := sum(dropped.rows.values()) - tokens:
        yield (
            f"the oldest details were dropped to keep the run small{where} "
            f"({units.plural(details, 'row')}): figures are of what began later"
        )
    if tokens:
        yield (
            f"captured tokens were dropped to keep the run small{where} "
            f"({units.plural(tokens, 'token')}): those of the oldest samples are not there"
        )


def damage_lines(found: tuple[Damaged, ...]) -> Iterator[str]:
    """One sentence for each process, up to a few."""
    for one in found[:_MOST]:
        yield (
            f"what {one.role or 'a process'}{pid_on(one.pid, one.host)} recorded is cut or damaged "
            f"({listed(one.tables)}): figures are of the rows before that"
        )
    if len(found) > _MOST:
        others = units.plural(len(found) - _MOST, "more process")
        yield f"what {others} recorded is cut or damaged: `rltrace info` lists the files"


def going_lines(as_of: AsOf) -> Iterator[str]:
    """As of when a run is told that goes on, and which of its nodes say no more."""
    ago = f", {units.seconds(as_of.ago_s)} ago" if as_of.ago_s >= _NOW_S else ""
    if not as_of.gone:
        what = "what its nodes have shipped reaches until" if as_of.brought else "it is told as of"
        yield f"the run has no end yet: {what} {clock_time(as_of.at_ns)}{ago}"
        return
    hosts = [f"{one.host} since {clock_time(one.since_ns)}" for one in as_of.gone]
    yield (
        f"nothing has come from {listed(hosts)}, and the run has no end (what is here reaches "
        f"until {clock_time(as_of.at_ns)}{ago}): the node, its agent or its network is gone"
    )


def outlived_lines(lasted_s: float | None, command_s: float | None) -> Iterator[str]:
    """That a job outlived its command, where it was recorded for longer than that took."""
    if lasted_s is not None and command_s is not None and lasted_s > command_s:
        yield (
            f"the job outlived its command, which ended after {units.seconds(command_s)}: what it "
            f"had started was recorded until {units.seconds(lasted_s)}"
        )
