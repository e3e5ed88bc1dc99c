"""The page as one file, with a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from string import Template

from rltrace import dashboards
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary
from rltrace.report.html import last_parts
from rltrace.report.html.device_part import device_part
from rltrace.report.html.goodput_part import goodput_part
from rltrace.report.html.head import fixes_part, head_part, walls_part
from rltrace.report.html.lag_part import lag_part
from rltrace.report.html.markup import join, tag, text
from rltrace.report.html.parts import Part
from rltrace.report.html.step_parts import step_part
from rltrace.report.html.sync_part import sync_part
from rltrace.report.html.tail_part import tail_part
from rltrace.report.whole_file import write_file

_SCRIPTS = ("pictures.js", "page.js")


def render(analysis: RunAnalysis, summary: Summary, own_figures: bool = False) -> str:
    """The page; `own_figures` as in `sections`."""
    parts = _parts(analysis, summary, own_figures)
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
        script=script,
    )


def write(analysis: RunAnalysis, summary: Summary, path: Path, own_figures: bool = False) -> int:
    """Writes the page; its size in bytes. `own_figures` as in `sections`. Errors: `RltraceError`
    when the file cannot be written."""
    page = render(analysis, summary, own_figures).encode("utf-8", errors="replace")
    write_file(path, page)
    return len(page)


def _parts(analysis: RunAnalysis, summary: Summary, own_figures: bool) -> list[Part]:
    parts = [
        head_part(summary),
        fixes_part(summary.verdict),
        walls_part(summary.verdict),
        step_part(summary),
        last_parts.probe_part(summary),
        last_parts.own_figures_part(summary) if own_figures else None,
        goodput_part(summary),
        tail_part(analysis, summary),
        lag_part(analysis, summary),
        sync_part(analysis, summary),
        device_part(analysis, summary),
        last_parts.reward_part(summary),
        last_parts.coverage_part(summary),
    ]
    return [one for one in parts if one is not None]


def _asset(name: str) -> str:
    return Path(dashboards.folder("report"), name).read_text(encoding="utf-8")


def _compact(style: str) -> str:
    """A style sheet without its comments and indentation."""
    return re.sub(r"\n\s+", "\n", re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL))
