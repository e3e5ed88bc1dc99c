"""All that is fuzzed, by name."""

from __future__ import annotations

from tests.fuzz import of_inputs, of_logs, of_requests, of_shipped, of_sync, of_traces

_PARTS = (of_traces, of_logs, of_inputs, of_shipped, of_sync, of_requests)

TARGETS = {target.name: target for part in _PARTS for target in part.TARGETS}
