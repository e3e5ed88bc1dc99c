"""What two runs were told to do, and on what: settings, devices and programs that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rltrace.analysis.current import stated_settings
from rltrace.analysis.devices import Devices

if TYPE_CHECKING:
    from rltrace.trace.run import Run


@dataclass(frozen=True)
class Difference:
    """A setting, or a fact about device or program; None: not stated."""

    name: str
    before: Any
    after: Any


def settings_that_differ(first: Run, second: Run) -> tuple[Difference, ...]:
    """What the job states of itself, and else the words of its command that only one run has."""
    stated = [stated_settings(run) for run in (first, second)]
    if all(stated):
        return _differing(*stated)
    words = [[str(w) for w in run.meta.get("command") or ()] for run in (first, second)]
    only = [[w for w in mine if w not in other] for mine, other in (words, words[::-1])]
    if only[0] or only[1]:
        return (Difference("command", " ".join(only[0]), " ".join(only[1])),)
    return ()


def facts_that_differ(
    first: tuple[Run, Devices], second: tuple[Run, Devices]
) -> tuple[Difference, ...]:
    """Devices, hosts and programs of two runs, each with its devices."""
    return _differing(_facts(*first), _facts(*second))


def _facts(run: Run, devices: Devices) -> dict[str, Any]:
    return {
        "device": devices.name or devices.kind,
        "devices": devices.count,
        "hosts": len({p.node for p in run.processes}),
        "framework": run.meta.get("framework"),
        "framework version": run.meta.get("framework_version"),
        "rltrace version": run.meta.get("rltrace_version"),
        "probed": "probe" in (run.meta.get("settings") or {}),
    }


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Difference, ...]:
    names = dict.fromkeys([*before, *after])
    return tuple(
        Difference(name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    )
