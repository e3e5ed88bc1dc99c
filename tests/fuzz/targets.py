"""All that is fuzzed, by name."""

from __future__ import annotations

from tests.fuzz import of_inputs, of_logs, of_sync, of_traces

TARGETS = {
    t.name: t for t in (*of_traces.TARGETS, *of_logs.TARGETS, *of_inputs.TARGETS, *of_sync.TARGETS)
}
