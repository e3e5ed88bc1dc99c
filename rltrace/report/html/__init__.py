"""The report as a page: one file that opens from disk and asks nothing of any network."""

from __future__ import annotations

from rltrace.report.html.head import in_notebook
from rltrace.report.html.page import render, write

__all__ = ["in_notebook", "render", "write"]
