"""As of when a run is told that goes on, and which of its nodes say no more, in words."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.known import AsOf
from rltrace.report import units
from rltrace.report.layout import listed
from rltrace.trace.reach import clock_time

_NOW_S = 1.0  # what is younger is as of now


def going_lines(as_of: AsOf) -> Iterator[str]:
    """What is to be said before any figure of such a run, a sentence each."""
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
