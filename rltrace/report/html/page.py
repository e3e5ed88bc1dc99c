"""The page as one file, with a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from string import Template
from typing import Any

from rltrace import dashboards
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.step_shapes import step_shapes
from rltrace.analysis.summary import Summary
from rltrace.report.html import last_parts
from rltrace.report.html.device_part import device_part
from rltrace.report.html.goodput_part import goodput_part
from rltrace.report.html.head import fixes_part, head_part, walls_part
from rltrace.report.html.lag_part import lag_part
from rltrace.report.html.markup import embedded_json, join, tag, text
from rltrace.report.html.packing import Columns, pack
from rltrace.report.html.parts import Part
from rltrace.report.html.step_parts import MOST_SHAPES, shapes_data, step_part
from rltrace.report.html.sync_part import sync_part
from rltrace.report.html.tail_part import tail_part
from rltrace.report.html.timeline_part import timeline_part
from rltrace.report.whole_file import write_file

_SCRIPTS = ("pictures.js", "waterfall.js", "timeline_data.js", "timeline_drawing.js",
            "timeline.js", "page.js")  # fmt: skip


def render(analysis: RunAnalysis, summary: Summary, own_figures: bool = False) -> str:
    """The page; `own_figures` as in `sections`."""
    parts, about, columns = _parts(analysis, summary, own_figures)
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
        contents=tag("ul", *(tag("li", tag("a", p.short, href=f"#{p.key}")) for p in parts)),
        parts=join(*(one.body for one in parts)),
        about=embedded_json({**about, "columns": contents}),
        data=packed,
        script=script,
    )


def write(analysis: RunAnalysis, summary: Summary, path: Path, own_figures: bool = False) -> int:
    """Writes the page; its size in bytes. `own_figures` as in `sections`. Errors: `RltraceError`
    when the file cannot be written."""
    page = render(analysis, summary, own_figures).encode("utf-8", errors="replace")
    write_file(path, page)
    return len(page)


def _parts(
    analysis: RunAnalysis, summary: Summary, own_figures: bool
) -> tuple[list[Part], dict[str, Any], Columns]:
    timeline, about, columns = timeline_part(analysis)
    shapes = step_shapes(analysis.activity, analysis.steps, MOST_SHAPES)
    of_shapes, shape_columns = shapes_data(shapes, summary)
    parts = [
        head_part(summary),
        fixes_part(summary.verdict),
        walls_part(summary.verdict),
        step_part(shapes, summary),
        last_parts.probe_part(summary),
        last_parts.own_figures_part(summary) if own_figures else None,
        goodput_part(summary),
        tail_part(analysis, summary),
        lag_part(analysis, summary),
        sync_part(analysis, summary),
        device_part(analysis, summary),
        last_parts.reward_part(summary),
        timeline,
        last_parts.checks_part(summary),
        last_parts.coverage_part(summary),
    ]
    found = [one for one in parts if one is not None]
    return found, {"timeline": about or None, "shapes": of_shapes}, columns | shape_columns


def _asset(name: str) -> str:
    return Path(dashboards.folder("report"), name).read_text(encoding="utf-8")


def _compact(style: str) -> str:
    """A style sheet without its comments and indentation."""
    return re.sub(r"\n\s+", "\n", re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL))
