"""Which framework a run is of, and whether its times are real."""

from __future__ import annotations

from rltrace.analysis.devices import Described
from rltrace.trace.processes import Process


def version_of(process: Process) -> str:
    """The version of its framework that a process states; empty where it does not."""
    versions = process.facts.get("versions")
    known = versions.get(process.adapter) if isinstance(versions, dict) else None
    return str(known or "")


def framework_of(run: Described) -> tuple[str, str]:
    """`(name, version)` of the run's framework; empty where unknown."""
    for process in run.processes:
        if process.adapter:
            return str(process.adapter), version_of(process)
    imported = run.meta.get("imported")
    name = imported.get("trainer") if isinstance(imported, dict) else None
    return str(name or run.meta.get("framework") or ""), ""


def is_laid_out(run: Described) -> bool:
    """Whether the run was made of a log of durations: when what ran within a step, and so what ran
    at once, is not known then. A log may have had times of its own, which were kept."""
    imported = run.meta.get("imported")
    return bool(imported) and not (isinstance(imported, dict) and imported.get("placed"))
