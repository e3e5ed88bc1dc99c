"""How many devices the job held, and how that is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rltrace.trace.run import Run


@dataclass(frozen=True)
class Devices:
    """`count` GPUs, or CPU cores where no GPU was seen (`kind` says which; 0: not known).

    `name` is the GPU's as the driver tells it, empty where nobody asked or they differ.
    """

    kind: str
    count: int
    name: str
    source: str


def count_devices(run: Run) -> Devices:
    """The devices that the traced processes were given, else those that were sampled, else cores.

    A device is counted once however many processes share it. Cores are those of every node that a
    traced process ran on.
    """
    name = _gpu_name(run)
    held = {
        (process.node, str(device))
        for process in run.processes
        for device in _listed(process.facts.get("devices"))
    }
    if held:
        return Devices("GPU", len(held), name, "the devices given to traced processes")
    sampled = run.sql(
        "select distinct p.node, s.device from raw_samples s join processes p using (process) "
        "join names n on n.id = s.counter where s.device >= 0 and n.text like 'gpu%'"
    ).fetchall()
    if sampled:
        return Devices("GPU", len(sampled), name, "the devices sampled by NVML on its nodes")
    cores: dict[str, int] = {}
    for process in run.processes:
        count = process.facts.get("cores")
        if isinstance(count, int) and count > 0:
            cores[process.node] = max(count, cores.get(process.node, 0))
    stated = run.meta.get("settings", {}).get("cores")
    if not cores and isinstance(stated, int):
        cores[str(run.meta.get("node"))] = stated
    source = "all cores of its nodes; no GPU was seen" if cores else "no GPU seen, cores unknown"
    return Devices("core", sum(cores.values()), "", source)


def _gpu_name(run: Run) -> str:
    names: Counter[str] = Counter()
    for process in run.processes:
        names.update(str(gpu) for gpu in _listed(process.facts.get("gpus")))
    return next(iter(names)) if len(names) == 1 else ""


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
