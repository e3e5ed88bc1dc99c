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
from rltrace.report.html.markup import Html
from rltrace.report.sections import syncs_section


def sync_part(analysis: RunAnalysis, summary: Summary) -> Html:
    if summary.syncs is None:
        why = "No weight update was recorded."
        if any(row.name == "sync" for row in summary.stages):
            why = "Only spans of syncs were recorded: how long, and not how many bytes or by what."
        return parts.unknown("sync", "Weight sync", why)
    shown = _each_update(analysis.updates) if analysis.updates else None
    return parts.of_section("sync", syncs_section(summary), shown)


def _each_update(updates: Sequence[Update]) -> Html:
    bars = draw.groups(updates)
    means = [float(np.mean([one.seconds for one in bar])) for bar in bars]
    end = draw.scale_end(means)
    columns = draw.Columns([*map(_versions, bars)], "policy version", high=110)
    return parts.picture(
        key="updates",
        title="How long each update took",
        says=f"All {units.count(len(updates))} of the run; the time in which any process was at "
        f"work on it.{draw.said_of(bars, 'update', max(means) > end)}",
        drawing=columns.bars({"s-sync": means}, end, title="Seconds of each weight update"),
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


def device_part(analysis: RunAnalysis, summary: Summary) -> Html:
    """The GPUs; where none was seen, how much the run's processes worked."""
    since_ns, until_ns = analysis.drawn_ns
    loads = device_load(analysis.run, since_ns, until_ns, _TIME_PARTS)
    if not loads:
        return parts.unknown("gpus", "GPUs", _why(summary))
    shown = _strip(loads[:_MOST], (until_ns - since_ns) / 1e9)
    more = len(loads) - _MOST
    said = [f"{units.plural(more, 'more GPU')} not drawn."] if more > 0 else []
    said.append("NVML counts a GPU as busy while any kernel runs on it, however small.")
    return parts.part("gpus", "GPUs", shown, parts.notes(said))


def _why(summary: Summary) -> str:
    told = [p.detail for p in summary.coverage.problems if p.what == "no-gpu" and p.detail]
    if summary.run.imported:
        return "An imported log has no samples of GPUs."
    because = f": {told[0]}" if told else ""
    return f"No GPU was sampled{because.rstrip('.')}."


def _strip(loads: Sequence[DeviceLoad], length: float) -> Html:
    row = 20.0 if len(loads) <= 16 else 13.0
    high, wide = row * len(loads), draw.WIDE / _TIME_PARTS
    several = len({load.host for load in loads}) > 1
    names = [f"{load.host} " * several + f"GPU {load.device}" for load in loads]
    places = [n * row for n in range(len(loads))]
    times = draw.ticks(0, length)
    axis, show = draw.Axis(0, length), draw.seconds_of(times)
    blank = [("unknown", "no sample")] * any(bool(np.isnan(load.busy).any()) for load in loads)
    return parts.picture(
        key="gpu-strip",
        title="How busy each GPU was",
        says=f"Over the whole run, in parts of {units.seconds(length / _TIME_PARTS)}; on the "
        "right the mean.",
        around=parts.legend([*draw.HEAT_LEGEND, *blank]),
        drawing=draw.plot(
            high,
            draw.box(0, 0, draw.WIDE, high, "empty"),
            draw.heat([load.busy for load in loads], row, wide),
            draw.hits((0, y, draw.WIDE, row) for y in places),
            title="Busy share of each GPU over time",
            below=[(axis(t), show(t)) for t in times],
            left=[(y + row / 2, name) for y, name in zip(places, names, strict=True)],
            right=[
                (y + row / 2, units.share(load.busy_share))
                for y, load in zip(places, loads, strict=True)
            ],
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
