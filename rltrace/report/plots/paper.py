"""What every figure is drawn on, and the colours of the report's page."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from rltrace.dashboards import folder
from rltrace.trace.errors import RltraceError
from rltrace.trace.printable import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes

_COLOUR = re.compile(r"^\s*--([\w-]+): light-dark\((#[0-9a-f]{6}),", re.M)


@cache
def colours() -> dict[str, str]:
    """Colour by stage, and `lost`, `bar`, `good`, `soft`: those of the page in its light theme."""
    return dict(_COLOUR.findall((folder("report") / "page.css").read_text("utf-8")))


def colour(stage: str) -> str:
    """The colour of a stage; of one that a later version added, that of `other`."""
    known = colours()
    return known.get(stage, known["other"])


def axes(ax: Axes | None, width: float, height: float) -> Axes:
    """`ax`, or those of a new figure of that size in inches. Errors: `RltraceError` where
    matplotlib is not installed."""
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError:
            install = "pip install 'rltrace-toolkit[figures]'"
            raise RltraceError(f"figures need matplotlib, not found here: {install}") from None
        _, ax = pyplot.subplots(figsize=(width, height), layout="constrained")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def text(said: str) -> str:
    """What a job calls something, as matplotlib prints it: `$` would begin a formula."""
    return visible(said).replace("$", r"\$")


def nothing(ax: Axes, why: str) -> Axes:
    """Axes that only say why there is nothing to draw."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, text(why), transform=ax.transAxes, ha="center", va="center", wrap=True)
    return ax


def whole_numbers(ax: Axes) -> None:
    """Ticks of x at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def stage_legend(ax: Axes, stages: Iterable[str]) -> None:
    """A legend of these stages, beside the axes."""
    from matplotlib.patches import Patch

    handles = [Patch(color=colour(stage), label=stage) for stage in stages]
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
