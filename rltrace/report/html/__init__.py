"""The report as a page: one file that opens from disk and asks nothing of any network."""

from rltrace.report.html.page import in_notebook, render, write

__all__ = ["in_notebook", "render", "write"]
