"""The live view of a run as the lines of one screen, of any size."""

from __future__ import annotations

import math

from rich.text import Text

from rltrace.analysis.live.snapshot import ENDED, RUNNING, STARTING, Snapshot, Stopped
from rltrace.report import units
from rltrace.report.damage_lines import dropped_lines
from rltrace.report.layout import of_rank, pid_on
from rltrace.report.live_blocks import dead, roles, slowest, stages
from rltrace.report.live_numbers import figures, step_line
from rltrace.trace.printable import visible

_BLOCKS = (dead, stages, roles, slowest)


def frame(shown: Snapshot, width: int, height: int, hint: str = "") -> list[Text]:
    """The lines, what matters most first; `hint` stands in the last corner."""
    lines = [_title(shown, width), step_line(shown, width), *losses(shown), *figures(shown, width)]
    for block in _BLOCKS:
        lines += block(shown, width)
    lines = [_harmless(line) for line in lines[: height - bool(hint)]]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True  # it fits, and looking for places to break it at takes a while
    if hint:
        lines += [Text() for _ in range(height - 1 - len(lines))]
        lines.append(Text(hint[:width].rjust(width), style="dim"))
    return lines


def _harmless(line: Text) -> Text:
    """The line; where a name of the job's holds what a terminal would obey, that is written out."""
    return line if line.plain.isprintable() else Text(visible(line.plain))


def _title(shown: Snapshot, width: int) -> Text:
    job = shown.job
    style = "bold green" if job.state in (RUNNING, ENDED) else "bold red"
    if job.state == STARTING:
        style = "bold yellow"
    state = f"{job.sentence}{' after' if job.is_over else ','} {units.seconds(job.seconds)}"
    about = ", ".join(word for word in (job.framework, shown.placement) if word)
    name = Text(f"rltrace top · {job.id}", style="bold")
    if about and len(name) + len(about) + len(state) + 5 <= width:
        name.append(f" · {about}", style="not bold dim")
    name.truncate(max(10, width - len(state) - 2), overflow="ellipsis")
    name.append(" " * max(1, width - len(name) - len(state)))
    name.append(state, style=style)
    return name


_MOST_STOPPED = 2


def losses(shown: Snapshot) -> list[Text]:
    """What the live view has no figures of: details that were dropped, or were not recorded."""
    said = [*dropped_lines(shown.dropped)]
    said += [f"{shown.only_some}: nothing is told of samples"] if shown.only_some else []
    when = "before its end" if shown.job.is_over else "ago"
    said += [_stopped_sentence(one, when) for one in shown.stopped[:_MOST_STOPPED]]
    if (others := len(shown.stopped) - _MOST_STOPPED) > 0:
        said.append(f"recording stopped in {units.plural(others, 'more process')}")
    return [Text(f"! {sentence}", style="yellow") for sentence in said]


def _stopped_sentence(one: Stopped, since: str) -> str:
    who = of_rank(one.role, one.rank) + pid_on(one.pid, one.host)
    when = "" if math.isnan(one.for_s) else f" {units.seconds(one.for_s)} {since}"
    why = f": {one.detail}" if one.detail else ""
    return f"recording stopped in {who}{when}, figures lack what it did since{why}"
