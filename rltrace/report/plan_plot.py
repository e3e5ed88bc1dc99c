"""Curves of a plan as PNG, SVG or a page, where matplotlib is installed."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.analysis.plan.plan import Plan, Point
from rltrace.dashboards import folder
from rltrace.report.whole_file import write_file
from rltrace.trace.errors import RltraceError, WrongUsage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_KINDS = (".png", ".svg", ".html")
_COLOUR = re.compile(r"^\s*--([\w-]+): light-dark\((#[0-9a-f]{6}),", re.M)


def draw_sweep(points: Sequence[Point], what: str, path: Path) -> None:
    """Useful tokens of a GPU-second by what was swept, one colour a placement. Errors:
    `RltraceError` without matplotlib, for another kind of file, or where nothing fits."""
    _check(path)
    known = [(point.value, point.row) for point in points if point.row is not None]
    if not known:
        raise WrongUsage(f"nothing to draw: {points[0].refused}")
    ax = _axes()
    ax.plot([v for v, _ in known], [r.tokens_per_gpu_s for _, r in known], color="0.8", zorder=1)
    for name in dict.fromkeys(row.name for _, row in known):
        own = [(value, row.tokens_per_gpu_s) for value, row in known if row.name == name]
        ax.scatter([v for v, _ in own], [t for _, t in own], label=name, zorder=2)
    if known[-1][0] > 4 * known[0][0] > 0:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.set(xlabel=what, ylabel="useful tokens for a GPU-second", ylim=(0, None))
    ax.set_title("The best placement")
    ax.legend(frameon=False)
    _save(ax, path, f"rltrace plan: {what}")


def draw_split(found: Plan, path: Path) -> None:
    """Seconds of both chains and of the step by how many GPUs generate. Errors: as `draw_sweep`."""
    _check(path)
    if not found.split_curve:
        raise WrongUsage("nothing to draw: no placement with pools of its own fits")
    ax = _axes()
    x = [point.rollout for point in found.split_curve]
    ax.plot(x, [p.rollout_s for p in found.split_curve], color=colours()["rollout"], label="actors")
    ax.plot(x, [p.learner_s for p in found.split_curve], color=colours()["train"], label="learner")
    ax.plot(x, [p.step_s for p in found.split_curve], "k--", label="step")
    ax.set_yscale("log")
    ax.set(xlabel=f"GPUs that generate, of {found.spec.gpus}", ylabel="seconds")
    ax.set_title("Pool split")
    ax.legend(frameon=False)
    _save(ax, path, f"rltrace plan: {found.spec.name}")


@cache
def colours() -> dict[str, str]:
    """Colour by stage, and others: those of the report's page in its light theme."""
    return dict(_COLOUR.findall((folder("report") / "page.css").read_text("utf-8")))


def _axes() -> Axes:
    """Those of a new figure. Errors: `RltraceError` where matplotlib is not installed."""
    try:
        from matplotlib import pyplot
    except ImportError:
        install = "pip install 'rltrace-toolkit[figures]'"
        raise RltraceError(f"figures need matplotlib, not found here: {install}") from None
    _, ax = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def _check(path: Path) -> None:
    if path.suffix.lower() not in _KINDS:
        raise WrongUsage(f"--plot must end in {', '.join(_KINDS)}, not {path}")


def _save(ax: Axes, path: Path, title: str) -> None:
    from matplotlib import pyplot

    figure, kind, drawn = ax.get_figure(), path.suffix[1:].lower(), io.BytesIO()
    assert figure is not None
    try:
        figure.savefig(drawn, format="svg" if kind == "html" else kind, dpi=150)
        data = drawn.getvalue()
        if kind == "html":
            head = f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title>"
            data = head.encode() + data[data.index(b"<svg") :]
        write_file(path, data)
    finally:
        pyplot.close(figure)
