"""Weight sync, update by update; and the GPUs as the run went on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rltrace.analysis.devices import DeviceLoad, device_load
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary
from rltrace.analysis.syncs import Update
from rltrace.report import units
from rltrace.report.html import drawing as draw
from rltrace.report.html import parts
from rltrace.report.html.markup import Html, tag
from rltrace.report.sections import syncs_section


def sync_part(analysis: RunAnalysis, summary: Summary) -> parts.Part:
    if summary.syncs is None:
        why = "No weight update was recorded."
        if any(row.name == "sync" for row in summary.stages):
            why = "Only spans of syncs were recorded: how long, and not how many bytes or by what."
        return parts.unknown("sync", "Weight sync", why)
    shown = _each_update(analysis.updates) if analysis.updates else None
    return parts.of_section(syncs_section(summary), "sync", "Weight sync", shown)


def _each_update(updates: Sequence[Update]) -> Html:
    bars = draw.groups(updates)
    means = [float(np.mean([one.seconds for one in bar])) for bar in bars]
    end = draw.scale_end(means)
    columns = draw.Columns(list(map(_versions, bars)), "policy version", 62, top=12, bottom=120)
    return parts.picture(
        key="updates",
        title="How long each update took",
        says=f"All {units.count(len(updates))} of the run; the time in which any process was at "
        f"work on it.{draw.said_of(bars, 'update', max(means) > end)}",
        drawing=columns.drawing(
            columns.bars({"s-sync": means}, end, 3),
            title="Seconds of each weight update",
        ),
        columns=("version", "seconds", "bytes", "GB/s"),
        rows=[
            (name, units.seconds(mean), *_moved(bar))
            for name, mean, bar in zip(columns.names, means, bars, strict=True)
        ],
    )


def _versions(updates: Sequence[Update]) -> str:
    known = [one.version for one in updates if one.version >= 0]
    return f"v{draw.numbered(known)}" if known else "unknown"


def _moved(updates: Sequence[Update]) -> tuple[str, str]:
    known = [one for one in updates if one.bytes >= 0]
    if not known:
        return units.UNKNOWN, units.UNKNOWN
    seconds = sum(one.seconds for one in known)
    moved = sum(one.bytes for one in known)
    rate = moved / seconds / 1e9 if seconds else float("nan")
    return units.size(moved / len(known)), units.number(rate)


# --- devices

_MOST = 64
_TIME_PARTS = 200


def device_part(analysis: RunAnalysis, summary: Summary) -> parts.Part:
    """The GPUs; where none was seen, how much the run's processes worked."""
    since_ns, until_ns = analysis.drawn_ns
    loads = device_load(analysis.run, since_ns, until_ns, _TIME_PARTS)
    if not loads:
        why = parts.missing(_why(summary))
        return parts.part("gpus", "GPUs", "GPUs", why, parts.notes(_pools(summary)))
    shown = _strip(loads[:_MOST], (until_ns - since_ns) / 1e9)
    more = len(loads) - _MOST
    said = [f"{units.plural(more, 'more GPU')} not drawn."] if more > 0 else []
    said.append("NVML counts a GPU as busy while any kernel runs on it, however small.")
    return parts.part("gpus", "GPUs", "GPUs", shown, parts.notes([*_pools(summary), *said]))


def _why(summary: Summary) -> str:
    told = [p.detail for p in summary.coverage.problems if p.what == "no-gpu" and p.detail]
    if summary.run.imported:
        return "An imported log has no samples of GPUs."
    because = f": {told[0]}" if told else ""
    return f"No GPU was sampled{because.rstrip('.')}."


def _pools(summary: Summary) -> list[str]:
    pools = summary.cascade.pools if summary.cascade is not None else ()
    told = [f"{' + '.join(pool.roles)} {units.share(pool.busy_share)}" for pool in pools]
    return [f"At work in the steps, as the spans tell: {', '.join(told)}."] if told else []


def _strip(loads: Sequence[DeviceLoad], length: float) -> Html:
    row = 20.0 if len(loads) <= 16 else 12.0
    css = "name" if row > 14 else "tick"
    left, right, top = 130.0, draw.WIDTH - 70, 18.0
    bottom = top + row * len(loads)
    wide = (right - left) / _TIME_PARTS
    cells: dict[tuple[str, int], list[draw.Box]] = {}
    several = len({load.host for load in loads}) > 1
    names = [f"{load.host} " * several + f"GPU {load.device}" for load in loads]
    places = [top + n * row for n in range(len(loads))]
    for y, load in zip(places, loads, strict=True):
        degrees = np.where(np.isnan(load.busy), -1, np.rint(load.busy * draw.HEAT)).astype(int)
        for a, b, degree in draw.stretches(degrees):
            place = (left + a * wide, y + 1, (b - a) * wide, row - 2)
            if degree:
                kind = ("heat", min(degree, draw.HEAT)) if degree > 0 else ("unknown", 0)
                cells.setdefault(kind, []).append(place)
    times = draw.ticks(0, length)
    axis, show = draw.Axis(0, length, left, right), draw.seconds_of(times)
    blank = [("unknown", "no sample")] if ("unknown", 0) in cells else []
    return parts.picture(
        key="gpu-strip",
        title="How busy each GPU was",
        says=f"Over the whole run, in parts of {units.seconds(length / _TIME_PARTS)}; on the "
        "right the mean.",
        around=parts.legend([*draw.HEAT_LEGEND, *blank]),
        drawing=draw.drawing(
            bottom + 22,
            draw.row_names(zip(places, names, strict=True), left, row, css),
            draw.box(left, top, right - left, bottom - top, "empty"),
            draw.heat(cells),
            *(
                draw.label(right + 8, y + row / 2 + 4, units.share(load.busy_share), css="tick")
                for y, load in zip(places, loads, strict=True)
            ),
            draw.line(left, bottom, right, bottom, "base"),
            *(draw.label(axis(t), bottom + 16, show(t), "middle", "tick") for t in times),
            tag(
                "g",
                *(draw.box(0, y, draw.WIDTH, row, "hit", data_row=n) for n, y in enumerate(places)),
                class_="hits",
            ),
            title="Busy share of each GPU over time",
        ),
        columns=(
            *("GPU", "busy, mean", "most memory", "of", "held by", "power, mean", "energy"),
            *("throttled", "samples"),
        ),
        rows=[(name, *_cells(load)) for name, load in zip(names, loads, strict=True)],
    )


def _cells(load: DeviceLoad) -> tuple[str, ...]:
    slow = [f"{why} {units.share(of)}" for why, of in load.throttled_shares.items() if of >= 0.005]
    by_role = sorted(load.memory_bytes_by_role.items())
    held = [f"{role} {units.size(most)}" for role, most in by_role]
    return (
        units.share(load.busy_share),
        units.size(load.most_memory_bytes),
        units.size(load.memory_bytes),
        ", ".join(held) or units.UNKNOWN,
        f"{units.number(load.mean_power_w)} W" if load.mean_power_w > 0 else units.UNKNOWN,
        f"{units.number(load.joules / 1e3)} kJ" if load.joules >= 0 else units.UNKNOWN,
        ", ".join(slow) or ("no" if load.throttled_shares["power"] >= 0 else units.UNKNOWN),
        units.count(load.samples),
    )
