"""What the live view has no figures of: details that were dropped, and what was not recorded."""

from __future__ import annotations

import math
import textwrap

from rich.text import Text

from rltrace.analysis.live.snapshot import Snapshot, Stopped
from rltrace.report import units
from rltrace.report.damage_lines import dropped_lines

_MOST_STOPPED = 2


def losses(shown: Snapshot, width: int) -> list[Text]:
    """The lines; none where nothing was lost."""
    said = [*dropped_lines(shown.dropped)]
    said += [f"{shown.only_some}: nothing is told of samples"] if shown.only_some else []
    when = "before its end" if shown.job.is_over else "ago"
    said += [_stopped_sentence(one, when) for one in shown.stopped[:_MOST_STOPPED]]
    if (others := len(shown.stopped) - _MOST_STOPPED) > 0:
        said.append(f"recording stopped in {units.plural(others, 'more process')}")
    lines = []
    for sentence in said:
        wrapped = textwrap.wrap(sentence, max(20, width - 2), max_lines=2, placeholder=" …")
        for i, line in enumerate(wrapped):
            lines.append(Text(f"{' ' if i else '!'} {line}", style="yellow"))
    return lines


def _stopped_sentence(one: Stopped, since: str) -> str:
    who = one.role if one.rank is None else f"{one.role} {one.rank}"
    pid = "" if one.pid < 0 else f" (pid {one.pid} on {one.host})"
    when = "" if math.isnan(one.for_s) else f" {units.seconds(one.for_s)} {since}"
    why = f": {one.detail}" if one.detail else ""
    return f"recording stopped in {who}{pid}{when}, figures lack what it did since{why}"
