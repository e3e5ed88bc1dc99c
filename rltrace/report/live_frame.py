"""The live view of a run as the lines of one screen, of any size."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from rich.text import Text

from rltrace.analysis.live.snapshot import ENDED, RUNNING, STARTING, Snapshot, Stopped
from rltrace.report import units
from rltrace.report.damage_lines import dropped_lines
from rltrace.report.layout import of_rank, pid_on
from rltrace.report.live_blocks import Block, dead, devices, last_steps, roles, slowest, stages
from rltrace.report.live_numbers import figures, step_line
from rltrace.trace.printable import visible

WIDE = 120
"""From this width on, two columns are shown beside each other."""
_GAP = 4
_ROOMY = 20
_LEAST_LINES = 3  # a title and two lines
_LEFT = (stages, roles)
_RIGHT = (dead, slowest, last_steps, devices)
_NARROW = (dead, stages, roles, slowest)
_IF_TALL = (last_steps, devices)


def frame(shown: Snapshot, width: int, height: int, hint: str = "") -> list[Text]:
    """The lines; `hint` stands in the last corner."""
    top = [_title(shown, width), step_line(shown, width), *losses(shown, width)]
    numbers = figures(shown, width).lines
    if numbers:
        top += [*([Text()] if height >= _ROOMY else []), *numbers]
    room = height - len(top) - bool(hint)
    if width >= WIDE:
        left = (width - _GAP) // 2
        beside = _stacked([block(shown, width - _GAP - left) for block in _RIGHT], room)
        lines = _beside(_stacked([block(shown, left) for block in _LEFT], room), beside, left)
    else:
        more = [block(shown, width) for block in _IF_TALL]
        lines = _stacked([block(shown, width) for block in _NARROW], room, more)
    lines = [_harmless(line) for line in (*top, *lines)]
    for line in lines:
        line.truncate(width)
        line.no_wrap = True  # it fits, and looking for places to break it at takes a while
    if hint:
        lines = lines[: height - 1]
        lines += [Text() for _ in range(height - 1 - len(lines))]
        lines.append(Text(hint[:width].rjust(width), style="dim"))
    return lines[:height]


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


def _stacked(blocks: list[Block], room: int, more: Sequence[Block] = ()) -> list[Text]:
    """The blocks below each other, as far as there is room: each gets a few lines, then the first
    ones the rest of theirs, then empty lines between them, then what is `more` of interest."""
    blocks = [block for block in blocks if block.lines]
    given: list[int] = []
    for block in blocks:
        least = min(block.height, _LEAST_LINES)
        given.append(least if sum(given) + least <= room else 0)
    for i, block in enumerate(blocks):
        if given[i]:
            given[i] += min(block.height - given[i], room - sum(given))
    shown = [(block, height) for block, height in zip(blocks, given, strict=True) if height]
    left = room - sum(given)
    gap = int(left >= len(shown))
    left -= gap * len(shown)
    for block in more:
        if block.lines and left >= _LEAST_LINES + gap:
            shown.append((block, min(block.height, left - gap)))
            left -= shown[-1][1] + gap
    return [line for block, height in shown for line in [Text()] * gap + block.cut(height)]


def _beside(left: list[Text], right: list[Text], width: int) -> list[Text]:
    lines = []
    for one, other in zip_longest(left, right):
        line = Text() if one is None else one.copy()
        line.truncate(width, pad=True)
        if other is not None:
            line.append(" " * _GAP).append_text(other)
        lines.append(line)
    return lines


_MOST_STOPPED = 2


def losses(shown: Snapshot, width: int) -> list[Text]:
    """What the live view has no figures of: details that were dropped, or were not recorded."""
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
    who = of_rank(one.role, one.rank) + pid_on(one.pid, one.host)
    when = "" if math.isnan(one.for_s) else f" {units.seconds(one.for_s)} {since}"
    why = f": {one.detail}" if one.detail else ""
    return f"recording stopped in {who}{when}, figures lack what it did since{why}"
