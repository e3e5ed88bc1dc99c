"""How many devices the job held, and how that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rltrace.trace.processes import Process

GPU, LOGICAL, CORE = "GPU", "logical GPU", "core"

AGENT = "agent"
"""Role of the process that watches a node; its `devices` are the names of all GPUs there."""


@dataclass(frozen=True)
class Devices:
    """`count` GPUs, or CPU cores where no GPU was seen (`kind` says which; 0: not known). A
    `LOGICAL` GPU is one that a scheduler gave away on nodes where the driver shows none.

    `name` is the GPU's as the driver tells it, empty where nobody asked or they differ.
    """

    kind: str
    count: int
    name: str
    source: str


class Described(Protocol):
    """A run that was opened, or is followed: what its processes and its run.json say."""

    @property
    def processes(self) -> Sequence[Process]: ...

    @property
    def meta(self) -> Mapping[str, Any]: ...


def count_devices(run: Described) -> Devices:
    """The devices that the traced processes say they were given, else all GPUs of their nodes, else
    all cores. A device is counted once however many processes share it."""
    agents = [process for process in run.processes if process.role == AGENT]
    installed = [str(name) for agent in agents for name in _listed(agent.facts.get("devices"))]
    name = installed[0] if len(set(installed)) == 1 else ""
    held = {device for devices in held_devices(run).values() for device in devices}
    if held and agents and not installed:
        source = "those that Ray or the environment gave to traced processes; NVML sees none"
        return Devices(LOGICAL, len(held), "", source)
    if held:
        return Devices(GPU, len(held), name, "those given to traced processes")
    if installed:
        return Devices(GPU, len(installed), name, "all that NVML sees on its nodes")
    cores: dict[str, int] = {}
    for process in run.processes:
        count = process.facts.get("cores")
        if isinstance(count, int) and count > 0:
            cores[process.node] = max(count, cores.get(process.node, 0))
    stated = (run.meta.get("settings") or {}).get("cores")
    if not cores and isinstance(stated, int):
        cores[str(run.meta.get("node"))] = stated
    source = "all cores of its nodes; no GPU was seen" if cores else "no GPU seen, cores unknown"
    return Devices(CORE, sum(cores.values()), "", source)


def held_devices(run: Described) -> dict[int, tuple[str, ...]]:
    """By number of a process of the job, the devices that it says it was given."""
    return {
        process.number: tuple(
            f"{process.node} {device}" for device in _listed(process.facts.get("devices"))
        )
        for process in run.processes
        if process.role != AGENT
    }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
