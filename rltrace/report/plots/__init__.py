"""Figures for notebooks, drawn by matplotlib where it is installed; each returns its Axes.

`Run.plot_...` (rltrace.report.notebook) calls them. All figures are those of the report: the same
words, definitions and colours.
"""

from __future__ import annotations

from rltrace.report.plots.goodput import goodput
from rltrace.report.plots.lags import lags
from rltrace.report.plots.latency import latency
from rltrace.report.plots.stages import stages
from rltrace.report.plots.steps import steps
from rltrace.report.plots.timeline import timeline
from rltrace.report.plots.waterfall import waterfall

__all__ = ["goodput", "lags", "latency", "stages", "steps", "timeline", "waterfall"]
