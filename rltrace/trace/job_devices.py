"""Which devices a job was given, or had memory on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rltrace.trace.read.processes import TracedProcess

AGENT = "agent"
"""Role of the process that watches a node. Its `devices` are the names of all GPUs there, `uuids`
theirs, `held` the numbers of those on which a pid had memory."""


def held_devices(
    processes: Sequence[TracedProcess], seen: bool = True
) -> dict[int, tuple[str, ...]]:
    """By number of a process: the devices that it says it was given, else (if `seen`) those that it
    had memory on. An engine's core, beside its actor, may be what has the memory."""
    # The last agent of a place: one that was killed may have been replaced.
    agents = {_place(one): one.facts for one in processes if one.role == AGENT}
    found = {}
    for one in processes:
        if one.role != AGENT:
            told = agents.get(_place(one), {})
            held = told["held"].get(str(one.pid)) if isinstance(told.get("held"), dict) else ()
            devices = listed(one.facts.get("devices")) or listed(held if seen else None)
            named = (_name(one, str(device), listed(told.get("uuids"))) for device in devices)
            found[one.number] = tuple(dict.fromkeys(named))
    return found


def hidden_devices(processes: Sequence[TracedProcess]) -> dict[int, list[int]]:
    """By number of an agent, the numbers of its devices that are not the job's: another job may be
    at work there. Empty where nobody says, or not in a way that can be looked up."""
    held: dict[tuple[str, str], set[str]] = {}
    devices = held_devices(processes)
    for one in processes:
        held.setdefault(_place(one), set()).update(devices.get(one.number, ()))
    found = {}
    for agent in (one for one in processes if one.role == AGENT):
        uuids, mine = listed(agent.facts.get("uuids")), held.get(_place(agent))
        numbers_of = range(len(listed(agent.facts.get("devices"))))
        all_of = [_name(agent, str(number), uuids) for number in numbers_of]
        if mine and mine < set(all_of):
            found[agent.number] = [n for n in numbers_of if all_of[n] not in mine]
    return found


def cores_of(processes: Sequence[TracedProcess]) -> dict[str, int]:
    """By node: on how many cores any of its processes may run. A launcher may bind each rank, and
    the agent that it started, to a core of its own. Runs of 0.1 have a number (`cores`) only."""
    masks, found = dict[str, int](), dict[str, int]()
    for facts, node in ((one.facts, one.node) for one in processes):
        masks[node] = masks.get(node, 0) | int(str(facts.get("cpus") or 0), 16)
        found[node] = max(found.get(node, 0), masks[node].bit_count(), facts.get("cores") or 0)
    return {node: count for node, count in found.items() if count}


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _place(process: TracedProcess) -> tuple[str, str]:
    """Containers may share a node's clock; each has its own host name and devices."""
    return process.node, process.host


def _name(process: TracedProcess, device: str, uuids: list[Any]) -> str:
    """A device is named by its number, its UUID, or the beginning of that (CUDA takes one)."""
    if device.isdecimal() and int(device) < len(uuids):
        return str(uuids[int(device)])
    same = [uuid for uuid in uuids if device.startswith("GPU-") and str(uuid).startswith(device)]
    return str(same[0]) if len(same) == 1 else f"{process.node} {device}"
