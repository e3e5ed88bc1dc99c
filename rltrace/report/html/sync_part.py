"""Weight movement: what an update is made of, and every update one by one."""

from __future__ import annotations

import numpy as np

from rltrace.analysis.summary import Summary
from rltrace.analysis.syncs import Syncs, Update
from rltrace.report import units
from rltrace.report.html import drawing as draw
from rltrace.report.html.material import MOST_BARS, Material
from rltrace.report.html.parts import Part, Picture, legend, missing, of_section, part, picture
from rltrace.report.sections import syncs_section

_SMALL = 0.01
_REST = "in no phase"


def sync_part(material: Material) -> Part:
    """Weight movement."""
    summary = material.summary
    if summary.syncs is None:
        return part("sync", "Weight movement", "Weight movement", missing(_why(summary)))
    pictures = []
    if summary.syncs.phases and summary.syncs.updates:
        pictures.append(_phases(summary.syncs))
    if material.updates:
        pictures.append(_each(material.updates))
    section = syncs_section(summary)
    return of_section(section, "sync", "Weight movement", *map(picture, pictures))


def _why(summary: Summary) -> str:
    if any(row.name == "sync" for row in summary.stages):
        return "Only spans of syncs were recorded: how long, and not how many bytes or by what."
    return "No weight update was recorded."


def _phases(syncs: Syncs) -> Picture:
    whole = syncs.update_s.mean
    parts = [(name, spent.mean, spent.p95) for name, spent in syncs.phases]
    rest = whole - sum(mean for _, mean, _ in parts)
    if rest > _SMALL * whole:
        parts.append((_REST, rest, float("nan")))
    axis = draw.Axis(0, whole or 1, 0, draw.WIDTH)
    drawn, at = [], 0.0
    for n, (name, mean, _) in enumerate(parts):
        x, wide = axis(at), axis.length(mean)
        drawn.append(draw.box(x, 2, max(0.5, wide - 1), 30, f"p-{name.replace(' ', '-')}"))
        said = f"{name} {units.seconds(mean)}"
        if wide > 6.6 * len(said):
            drawn.append(draw.label(x + 2, 50, said, css="tick"))
        drawn.append(draw.box(x, 0, wide, 54, "hit", data_row=n))
        at += mean
    size = syncs.bytes_per_update
    bytes_ = f", {units.size(size.mean)} at {units.number(syncs.gb_per_s)} GB/s" if size.n else ""
    return Picture(
        key="phases",
        title="What an update is made of",
        says=f"The mean of {units.plural(syncs.updates, 'update')}: "
        f"{units.seconds(whole)}{bytes_}.",
        around=legend([(f"p-{name.replace(' ', '-')}", name) for name, _, _ in parts]),
        drawing=draw.drawing(56, *drawn, title="Phases of a weight update"),
        columns=("phase", "mean", "share", "p95"),
        rows=[
            (name, units.seconds(mean), units.share(mean / whole), units.seconds(p95))
            for name, mean, p95 in parts
        ],
    )


def _each(updates: tuple[Update, ...]) -> Picture:
    bars = draw.groups(len(updates), MOST_BARS)
    means = [float(np.mean([updates[i].seconds for i in bar])) for bar in bars]
    top = min(max(means), 3 * float(np.quantile(means, 0.98))) * 1.05 or 1.0
    left, right, high, bottom, height = 62.0, draw.WIDTH - 10, 12.0, 120.0, 152.0
    x, y = (
        draw.Axis(0, max(draw.FEWEST_BARS, len(bars)), left, right),
        draw.Axis(0, top, bottom, high),
    )
    wide = x(1) - left
    gap = min(1.5, 0.15 * wide)
    seconds = draw.ticks(0, top, 3)
    every = max(1, len(bars) // 10)
    named = [_versions([updates[i] for i in bar]) for bar in bars]
    grouped = f" Each bar is the mean of up to {len(bars[0])}." if len(bars[0]) > 1 else ""
    return Picture(
        key="updates",
        title="How long each update took",
        says=f"All {units.count(len(updates))} of the run; the time in which any process was at "
        f"work on it.{grouped}",
        drawing=draw.drawing(
            height,
            draw.y_axis(y, left, right, seconds, draw.seconds_of(seconds)),
            draw.boxes(
                (
                    (x(n) + gap / 2, y(min(s, top)), wide - gap, bottom - y(min(s, top)))
                    for n, s in enumerate(means)
                ),
                "s-sync",
            ),
            *(draw.label(x(n) + wide / 2, 10, "▲", "middle", "tick")
              for n, s in enumerate(means) if s > top),
            draw.line(left, bottom, right, bottom, "base"),
            *(draw.label(x(n) + wide / 2, bottom + 15, named[n], "middle", "tick")
              for n in range(0, len(bars), every)),
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
