"""The GPUs as the run went on; where none was seen, how much its processes worked."""

from __future__ import annotations

import numpy as np

from rltrace.analysis.devices import DeviceLoad, device_load
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary
from rltrace.report import units
from rltrace.report.html import drawing as draw
from rltrace.report.html import parts
from rltrace.report.html.markup import tag

_LEVELS = 10
_MOST = 64


def device_part(analysis: RunAnalysis, summary: Summary) -> parts.Part:
    since_ns, until_ns = analysis.drawn_ns
    loads = device_load(analysis.run, since_ns, until_ns, parts.TIME_PARTS)
    if not loads:
        why = parts.missing(_why(summary))
        return parts.part("gpus", "GPUs", "GPUs", why, parts.notes(_pools(summary)))
    picture_ = parts.picture(_strip(loads[:_MOST], (until_ns - since_ns) / 1e9))
    more = len(loads) - _MOST
    said = [f"{units.plural(more, 'more GPU')} not drawn."] if more > 0 else []
    said.append("NVML counts a GPU as busy while any kernel runs on it, however small.")
    return parts.part("gpus", "GPUs", "GPUs", picture_, parts.notes([*_pools(summary), *said]))


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


def _strip(loads: tuple[DeviceLoad, ...], length: float) -> parts.Picture:
    row = 20.0 if len(loads) <= 16 else 12.0
    left, right, top = 130.0, draw.WIDTH - 70, 18.0
    bottom = top + row * len(loads)
    wide = (right - left) / parts.TIME_PARTS
    cells: dict[int, list[tuple[float, float, float, float]]] = {}  # by degree; -1: no sample
    several = len({load.host for load in loads}) > 1
    names = [f"{load.host} " * several + f"GPU {load.device}" for load in loads]
    hits = []
    for n, load in enumerate(loads):
        y = top + n * row
        degrees = np.where(np.isnan(load.busy), -1, np.rint(load.busy * _LEVELS)).astype(int)
        for a, b, degree in draw.stretches(degrees):
            place = (left + a * wide, y + 1, (b - a) * wide, row - 2)
            if degree:
                cells.setdefault(min(degree, _LEVELS), []).append(place)
        hits.append(draw.box(0, y, draw.WIDTH, row, "hit", data_row=n))
    blank = cells.pop(-1, [])
    times = draw.ticks(0, length)
    axis, show = draw.Axis(0, length, left, right), draw.seconds_of(times)
    return parts.Picture(
        key="gpu-strip",
        title="How busy each GPU was",
        says=f"Over the whole run, in parts of {units.seconds(length / parts.TIME_PARTS)}; on the "
        "right the mean.",
        around=parts.legend([*((f"heat d{d}", f"{10 * d} %") for d in (1, 4, 7, 10)),
                       *([("unknown", "no sample")] if blank else [])]),
        drawing=draw.drawing(
            bottom + 22,
            *(draw.label(left - 10, top + n * row + row / 2 + 4, name, "end",
                    "name" if row > 14 else "tick") for n, name in enumerate(names)),
            draw.box(left, top, right - left, bottom - top, "empty"),
            draw.boxes(blank, "unknown"),
            *(tag("g", draw.boxes(places, "heat"), class_=f"d{degree}")
              for degree, places in sorted(cells.items())),
            *(draw.label(right + 8, top + n * row + row / 2 + 4, units.share(load.busy_share),
                    css="tick") for n, load in enumerate(loads)),
            draw.line(left, bottom, right, bottom, "base"),
            *(draw.label(axis(t), bottom + 16, show(t), "middle", "tick") for t in times),
            tag("g", *hits, class_="hits"),
            title="Busy share of each GPU over time",
        ),
        columns=("GPU", "busy, mean", "most memory", "of", "held by", "power, mean", "energy",
                 "throttled", "samples"),
        rows=[(name, *_cells(load)) for name, load in zip(names, loads, strict=True)],
    )  # fmt: skip


def _cells(load: DeviceLoad) -> tuple[str, ...]:
    slow = [f"{why} {units.share(of)}" for why, of in load.throttled.items() if of >= 0.005]
    held = [f"{role} {units.size(most)}" for role, most in sorted(load.holders.items())]
    return (
        units.share(load.busy_share),
        units.size(load.most_memory_bytes),
        units.size(load.memory_bytes),
        ", ".join(held) or units.UNKNOWN,
        f"{units.number(load.mean_power_w)} W" if load.mean_power_w > 0 else units.UNKNOWN,
        f"{units.number(load.joules / 1e3)} kJ" if load.joules >= 0 else units.UNKNOWN,
        ", ".join(slow) or ("no" if load.throttled["power"] >= 0 else units.UNKNOWN),
        units.count(load.samples),
    )
