"""A run as a timeline for Perfetto (https://ui.perfetto.dev)."""

from rltrace.report.perfetto.export import TimelineCounts, write

__all__ = ["TimelineCounts", "write"]
