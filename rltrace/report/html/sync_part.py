"""Weight movement, and every update one by one."""

from __future__ import annotations

import numpy as np

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary
from rltrace.analysis.syncs import Update
from rltrace.report import units
from rltrace.report.html import drawing as draw
from rltrace.report.html import parts
from rltrace.report.sections import syncs_section


def sync_part(analysis: RunAnalysis, summary: Summary) -> parts.Part:
    if summary.syncs is None:
        why = "No weight update was recorded."
        if any(row.name == "sync" for row in summary.stages):
            why = "Only spans of syncs were recorded: how long, and not how many bytes or by what."
        return parts.part("sync", "Weight movement", "Weight movement", parts.missing(why))
    shown = parts.picture(_each(analysis.updates)) if analysis.updates else None
    return parts.of_section(syncs_section(summary), "sync", "Weight movement", shown)


def _each(updates: tuple[Update, ...]) -> parts.Picture:
    bars = draw.groups(len(updates), parts.MOST_BARS)
    means = [float(np.mean([updates[i].seconds for i in bar])) for bar in bars]
    top = min(max(means), 3 * float(np.quantile(means, 0.98))) * 1.05 or 1.0
    left, right, high, bottom, height = 62.0, draw.WIDTH - 10, 12.0, 120.0, 152.0
    x = draw.Axis(0, max(draw.FEWEST_BARS, len(bars)), left, right)
    y = draw.Axis(0, top, bottom, high)
    wide = x(1) - left
    gap = min(1.5, 0.15 * wide)
    seconds = draw.ticks(0, top, 3)
    named = [_versions([updates[i] for i in bar]) for bar in bars]
    grouped = f" Each bar is the mean of up to {len(bars[0])}." if len(bars[0]) > 1 else ""
    return parts.Picture(
        key="updates",
        title="How long each update took",
        says=f"All {units.count(len(updates))} of the run; the time in which any process was at "
        f"work on it.{grouped}",
        drawing=draw.drawing(
            height,
            draw.y_axis(y, left, right, seconds, draw.seconds_of(seconds)),
            draw.boxes(((x(n) + gap / 2, y(min(s, top)), wide - gap, bottom - y(min(s, top)))
                        for n, s in enumerate(means)), "s-sync"),
            *(draw.label(x(n) + wide / 2, 10, "▲", "middle", "tick")
              for n, s in enumerate(means) if s > top),
            draw.line(left, bottom, right, bottom, "base"),
            draw.some(named, left, wide, bottom + 15),
            draw.label((left + right) / 2, height - 2, "policy version", "middle", "tick"),
            draw.hits(left, wide, len(bars), high, bottom),
            title="Seconds of each weight update",
        ),
        columns=("version", "seconds", "bytes", "GB/s"),
        rows=[
            (named[n], units.seconds(means[n]), *_moved([updates[i] for i in bar]))
            for n, bar in enumerate(bars)
        ],
    )  # fmt: skip


def _versions(updates: list[Update]) -> str:
    known = [one.version for one in updates if one.version >= 0]
    return f"v{draw.numbered(known)}" if known else "unknown"


def _moved(updates: list[Update]) -> tuple[str, str]:
    known = [one for one in updates if one.bytes >= 0]
    if not known:
        return units.UNKNOWN, units.UNKNOWN
    seconds = sum(one.seconds for one in known)
    moved = sum(one.bytes for one in known)
    rate = moved / seconds / 1e9 if seconds else float("nan")
    return units.size(moved / len(known)), units.number(rate)
