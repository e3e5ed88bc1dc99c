"""The page as one file, with a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from string import Template

from rltrace import dashboards
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary
from rltrace.report.coverage_section import coverage_section
from rltrace.report.html.head import fixes_part, head_part, walls_part
from rltrace.report.html.machine_parts import device_part, sync_part
from rltrace.report.html.markup import join, tag, text
from rltrace.report.html.parts import Part, of_section
from rltrace.report.html.sample_parts import lag_part, reward_part, tail_part
from rltrace.report.html.step_parts import goodput_part, step_part
from rltrace.report.own_figures_section import own_figures_section
from rltrace.report.probe_section import probe_section
from rltrace.report.whole_file import write_file

_SCRIPTS = ("pictures.js", "page.js")


def render(analysis: RunAnalysis, summary: Summary, own_figures: bool = False) -> str:
    """The page; `own_figures` as in `sections`."""
    parts = list(_parts(analysis, summary, own_figures))
    script = "".join(_asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    title = f"rltrace report · {summary.run.id}"
    return Template(_asset("page.html")).substitute(
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        title=text(title),
        style=_asset("page.css"),
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


def _parts(analysis: RunAnalysis, summary: Summary, own_figures: bool) -> Iterator[Part]:
    yield head_part(summary)
    yield fixes_part(summary.verdict)
    yield walls_part(summary.verdict)
    yield step_part(summary)
    if summary.probe is not None:
        yield of_section(probe_section(summary.probe), "probe", "Probe")
    if own_figures and summary.own_figures:
        yield of_section(own_figures_section(summary), "own-figures", "Own figures")
    yield goodput_part(summary)
    yield tail_part(analysis, summary)
    yield lag_part(analysis, summary)
    yield sync_part(analysis, summary)
    yield device_part(analysis, summary)
    yield reward_part(summary)
    yield of_section(coverage_section(summary), "unseen", "Not seen")


def _asset(name: str) -> str:
    return Path(dashboards.folder("report"), name).read_text(encoding="utf-8")
