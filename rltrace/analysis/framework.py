"""Which framework a run is of."""

from __future__ import annotations

from rltrace.analysis.devices import Described


def framework_of(run: Described) -> tuple[str, str]:
    """`(name, version)` of the run's framework; empty where unknown."""
    for process in run.processes:
        if process.adapter:
            versions = process.facts.get("versions")
            known = versions.get(process.adapter) if isinstance(versions, dict) else None
            return str(process.adapter), str(known or "")
    imported = run.meta.get("imported")
    name = imported.get("trainer") if isinstance(imported, dict) else None
    return str(name or run.meta.get("framework") or ""), ""
