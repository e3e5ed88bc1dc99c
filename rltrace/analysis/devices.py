"""How many devices the job held, and how that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rltrace.trace.given import AGENT, held_devices, listed
from rltrace.trace.processes import Process

GPU, LOGICAL, CORE = "GPU", "logical GPU", "core"


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
    """The devices that the traced processes say they were given, else those that they had memory
    on, else all GPUs of their nodes, else (or where none was given to any) all cores. A device is
    counted once however many processes share it."""
    agents = [process for process in run.processes if process.role == AGENT]
    installed = [str(name) for agent in agents for name in listed(agent.facts.get("devices"))]
    name = installed[0] if len(set(installed)) == 1 else ""
    held = {device for devices in held_devices(run.processes).values() for device in devices}
    given = [p.facts.get("devices") for p in run.processes if p.role != AGENT]
    if held and agents and not installed:
        source = "those that Ray or the environment gave to traced processes; NVML sees none"
        return Devices(LOGICAL, len(held), "", source)
    if held:
        how = "given to traced processes" if any(given) else "on which traced processes have memory"
        return Devices(GPU, len(held), name, f"those {how}")
    if installed and not (given and given.count([]) == len(given)):
        return Devices(GPU, len(installed), name, "all that NVML sees on its nodes")
    cores: dict[str, int] = {}
    for process in run.processes:
        count = process.facts.get("cores")
        if isinstance(count, int) and count > 0:
            cores[process.node] = max(count, cores.get(process.node, 0))
    stated = (run.meta.get("settings") or {}).get("cores")
    if not cores and isinstance(stated, int):
        cores[str(run.meta.get("node"))] = stated
    no_gpu = "it was given no GPU" if installed else "no GPU was seen"
    source = f"all cores of its nodes; {no_gpu}" if cores else f"{no_gpu}, cores unknown"
    return Devices(CORE, sum(cores.values()), "", source)
