"""Until when it is known what a run did that goes on, or was brought before all was there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.activity import Activity, OpenSpan
from rltrace.trace.liveness import is_brought
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run


@dataclass(frozen=True)
class Gone:
    """A node from which nothing has come for long, and since when (Unix ns)."""

    host: str
    since_ns: int


@dataclass(frozen=True)
class AsOf:
    """A run that goes on: it is known until `at_ns` (Unix ns), `ago_s` before it was opened.
    `brought`: from a URL, of nodes of which some may be `gone`."""

    at_ns: int
    ago_s: float
    brought: bool
    gone: tuple[Gone, ...]


def as_of(run: Run, recorded_until_ns: int) -> AsOf | None:
    """As of when a run that goes on is told, as far as anybody can say that it does; None for one
    that has ended, and where nobody can."""
    brought = is_brought(run.path)
    if run.meta.get("end_real_ns") is not None:
        return None
    if not brought and not run.goes_on:
        return None
    ago_s = max(0, run.opened_ns - recorded_until_ns) / 1e9
    gone = tuple(Gone(node.host, node.until_ns) for node in run.reach.gone(run.opened_ns))
    return AsOf(recorded_until_ns, ago_s, brought, gone)


def known_until(run: Run, span: OpenSpan, until_ns: int) -> int:
    """Until when it is known that a span was open, in a recording that lasted until `until_ns`
    (Unix ns): of a node that ships what it recorded there may be more to come."""
    node = {process.number: process.node for process in run.processes}.get(span.process, "")
    return run.reach.known_ns(node, span.last_sign_ns, until_ns)


def step_known_until(run: Run, activity: Activity, start_ns: int, until_ns: int) -> int:
    """The same of the step in progress that began then."""
    steps = [s for s in activity.open_spans if s.stage is Stage.STEP and s.start_ns == start_ns]
    return min((known_until(run, span, until_ns) for span in steps), default=until_ns)
