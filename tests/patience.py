"""How long tests wait for what must come."""

from __future__ import annotations

PATIENCE_S = 600
"""For a process, a file, an answer: only what hangs takes so long, whoever else has the machine."""
