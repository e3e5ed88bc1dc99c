"""The page as one file: parts in order, style, script and data, and a policy that lets nothing else
in."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from rltrace import dashboards
from rltrace.analysis.summary import Summary
from rltrace.report.html import last_parts
from rltrace.report.html.advice import fixes_part, walls_part
from rltrace.report.html.device_part import device_part
from rltrace.report.html.goodput_part import goodput_part
from rltrace.report.html.head import head_part
from rltrace.report.html.lag_part import lag_part
from rltrace.report.html.markup import Html, embedded_json, join, tag, text
from rltrace.report.html.material import Material, gather
from rltrace.report.html.packing import Columns, pack
from rltrace.report.html.parts import Part
from rltrace.report.html.step_parts import shapes_data, step_part
from rltrace.report.html.sync_part import sync_part
from rltrace.report.html.tail_part import tail_part
from rltrace.report.html.timeline_part import timeline_part

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_SCRIPTS = ("pictures.js", "waterfall.js", "timeline_data.js", "timeline_drawing.js",
            "timeline.js", "page.js")  # fmt: skip


def render(run: Run, summary: Summary, own_figures: bool = False) -> str:
    """The page; `own_figures` as in `sections`."""
    material = gather(run, summary)
    parts, about, columns = _parts(material, own_figures)
    contents, packed = pack(columns)
    script = "".join(_asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    title = f"rltrace report · {summary.run.id}"
    return Template(_asset("page.html")).substitute(
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        title=text(title),
        style=_compact(_asset("page.css")),
        run=text(summary.run.id),
        contents=_contents(parts),
        parts=join(*(one.body for one in parts)),
        about=embedded_json({**about, "columns": contents}),
        data=packed,
        script=script,
    )


def _parts(material: Material, own_figures: bool) -> tuple[list[Part], dict[str, Any], Columns]:
    summary = material.summary
    timeline, about, columns = timeline_part(material)
    shapes, shape_columns = shapes_data(material)
    parts = [
        head_part(summary),
        fixes_part(summary.verdict),
        walls_part(summary.verdict),
        step_part(material),
        last_parts.probe_part(summary),
        last_parts.own_figures_part(summary) if own_figures else None,
        goodput_part(summary),
        tail_part(material),
        lag_part(material),
        sync_part(material),
        device_part(material),
        last_parts.reward_part(summary),
        timeline,
        last_parts.checks_part(summary),
        last_parts.coverage_part(summary),
    ]
    found = [one for one in parts if one is not None]
    return found, {"timeline": about or None, "shapes": shapes}, columns | shape_columns


def _contents(parts: list[Part]) -> Html:
    entries = (tag("li", tag("a", one.short, href=f"#{one.key}")) for one in parts)
    return tag("ul", *entries)


def _asset(name: str) -> str:
    return Path(dashboards.folder("report"), name).read_text(encoding="utf-8")


def _compact(style: str) -> str:
    """A style sheet without its comments and indentation."""
    return re.sub(r"\n\s+", "\n", re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL))
