"""On what, with what and with which settings a run was done: what makes two runs comparable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rltrace.analysis.current import current_settings
from rltrace.analysis.devices import AGENT, CORE, count_devices
from rltrace.analysis.differing import Difference
from rltrace.analysis.framework import framework_of

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_STATED = ("placement", "objective", "updates_per_version")
_NO_WORK = (
    "seed", "dir", "path", "file", "logger", "logging", "log", "wandb", "tensorboard", "project",
    "experiment", "run", "tracker", "port", "host", "address",
    "cluster",
)  # fmt: skip
_LENGTH = (
    "steps", "max_steps", "total_steps", "total_training_steps", "num_train_epochs", "epochs",
    "total_epochs", "num_episodes", "max_epochs", "resume", "checkpoint", "checkpoint_every",
)  # fmt: skip
"""Settings with one of `_NO_WORK` among the words of their name say where things go or run, or
which samples are drawn; those of `_LENGTH` how long the job goes on. Neither is the work of a
step."""

VERSIONS = ("framework version", "python")
"""What may be just the change that is judged: told, and no reason to refuse."""

Facts = Mapping[str, Any]


def hardware_of(run: Run) -> Facts:
    """Devices (kind, name, count), nodes, and the cores and CPU models of the nodes; None where it
    was not recorded."""
    devices = count_devices(run)
    agents = [process for process in run.processes if process.role == AGENT]
    cores = [process.facts.get("cores") for process in agents]
    stated = [cores_of for cores_of in cores if isinstance(cores_of, int)]
    cpus = sorted({str(p.facts["cpu"]) for p in agents if p.facts.get("cpu")})
    return {
        "device": devices.name or devices.kind,
        "devices": devices.count,
        "nodes": len({process.node for process in run.processes}),
        "cores": sum(stated) if stated else (devices.count if devices.kind == CORE else None),
        "cpu": ", ".join(cpus) or None,
    }


def framework_facts(run: Run) -> Facts:
    """The framework, its version and Python's (major and minor); None where it is not known."""
    name, version = framework_of(run)
    pythons = {".".join(str(p.facts.get("python") or "").split(".")[:2]) for p in run.processes}
    return {
        "framework": name or None,
        "framework version": version or run.meta.get("framework_version"),
        "python": ", ".join(sorted(pythons - {""})) or None,
    }


def settings_of(run: Run) -> Facts:
    """What the job was told to do, as far as it states it, and its shape: processes by role and
    parameters of its models."""
    roles: dict[str, int] = {}
    parameters = set()
    stated: dict[str, Any] = {}
    for process in run.processes:
        if process.role and process.role != AGENT:
            roles[process.role] = roles.get(process.role, 0) + 1
        if isinstance(process.facts.get("parameters"), int):
            parameters.add(process.facts["parameters"])
        stated |= {n: process.facts[n] for n in _STATED if process.facts.get(n) is not None}
    settings = current_settings(run, *framework_of(run))
    told = {name: value for name, value in settings.items() if _is_work(name)}
    return {
        **dict(sorted(told.items())),
        **stated,
        "parameters": max(parameters) if parameters else None,
        **{f"{role} processes": n for role, n in sorted(roles.items())},
    }


def facts_that_differ(before: Facts, after: Facts) -> tuple[Difference, ...]:
    """What both state and state differently: what one does not tell is no difference."""
    return tuple(
        Difference(name, before[name], after[name])
        for name in before
        if name in after
        and before[name] is not None
        and after[name] is not None
        and before[name] != after[name]
    )


def _is_work(name: str) -> bool:
    plain = name.lower().replace("-", "_").strip("_")
    words = plain.replace(".", "_").split("_")
    return plain.rpartition(".")[2] not in _LENGTH and not any(w in _NO_WORK for w in words)
