"""The tables of docs/reference/frameworks.md: what adapters say and their hooks are held to.

python -m tests.docs.frameworks        writes them into the page
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from rltrace.adapters.table import TableAdapter
from rltrace.testing.inside.adapters import LogRecord as Record
from rltrace.testing.inside.adapters import log_tables, table_of
from rltrace.testing.inside.hooks import Adapter, Hook
from rltrace.testing.inside.importers import MAPPED, Scheme, importers
from rltrace.testing.inside.trace import satisfies
from tests.adapters.symbols import found_at, versions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/frameworks.md"
LATEST = ROOT / "tests/adapters/latest.json"
LATEST_IS = """\
`make frameworks-latest` installs the newest release of each from the package index, looks for the
functions and options that rltrace names, and runs a part of its suite (`QUICK=1`):"""
BEGIN, END = "<!-- made by python -m tests.docs.frameworks -->", "<!-- end of what is made -->"
NAMES = {
    "rltrace.trainer": "the built-in trainer",
    "agentlightning": "Agent Lightning",
    "areal": "AReaL",
    "forge.observability": "torchforge",
    "nemo_rl": "NeMo-RL",
    "openrlhf": "OpenRLHF",
    "prime_rl": "prime-rl",
    "relax.engine": "Relax",
    "rlinf": "RLinf",
    "rlyx": "RLYX",
    "roll.pipeline": "ROLL",
    "transfer_queue": "TransferQueue",
    "trl": "TRL",
}
"""Import name -> name in prose, where they differ."""

STAGES = (
    "step", "rollout", "env", "reward", "reference", "logprob", "value", "train", "sync", "switch",
    "wait",
)  # fmt: skip
TIERS = {"calls": "call", "timers": "timer"}
QUANTITIES = {
    "samples in time": ("trajectories", "start_ns"),
    "their versions": ("trajectories", "first_version"),
    "their tokens": ("trajectories", "response_tokens"),
    "what trained": ("uses", "version"),
    "verdicts": ("rewards", "value"),
    "weights' bytes": ("syncs", "bytes"),
    "own figures": ("samples", "counter"),
}
"""What a user wants to know -> table and column that say it."""


def adapters() -> dict[str, type[Adapter]]:
    """The adapters that rltrace brings, by name in prose."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = {}
    for framework, target in project["entry-points"]["rltrace.adapters"].items():
        module, _, name = target.partition(":")
        found[NAMES.get(framework, framework)] = getattr(import_module(module), name)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def stages(adapter: type[Adapter]) -> dict[str, str]:
    """Stage -> the highest tier that shows it."""
    seen: dict[str, str] = {}
    for tier in reversed(TIERS):
        of_tier = getattr(adapter, tier) if issubclass(adapter, TableAdapter) else adapter.hooks
        for hook in of_tier:
            for stage in hook.stage_word.split(", "):
                seen[stage] = TIERS[tier] if issubclass(adapter, TableAdapter) else "call"
    if begins_steps(adapter):
        seen.setdefault("step", "call")
    return seen


def begins_steps(adapter: type[Adapter]) -> bool:
    """Whether one of its own readers begins steps (a timer does where one of its labels is one)."""
    own = [f for f in functions(adapter) if not f.__module__.startswith(TableAdapter.__module__)]
    names = [set(function.__code__.co_names) for function in own]
    return any("step_begins" in each or {"span_api", "step"} <= each for each in names)


def functions(adapter: type[Adapter]) -> Iterator[FunctionType]:
    """Its readers, and what of rltrace's they call."""
    seen: set[int] = set()
    pending: list[Any] = [
        reader for hook in adapter.hooks for reader in (hook.before, hook.after, hook.stage)
    ]
    while pending:
        function = pending.pop()
        function = getattr(function, "__func__", function)
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        yield function
        named = [function.__globals__.get(name) for name in function.__code__.co_names]
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        methods = [
            getattr(value, name, None)
            for value in (*named, *held)
            if type(value).__module__.startswith("rltrace.adapters")
            for name in function.__code__.co_names
        ]
        pending += [
            value
            for value in (*named, *held, *methods)
            if str(getattr(value, "__module__", "")).startswith("rltrace.adapters")
        ]


def quantities(adapter: type[Adapter]) -> set[str]:
    """What of `QUANTITIES` its readers write down."""
    texts = {"start_ns", "counter"}  # every row has its time
    pending: list[Any] = []
    for function in functions(adapter):
        named = map(function.__globals__.get, function.__code__.co_names)
        pending += [function.__code__, *(value for value in named if type(value) is tuple)]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            texts.add(value)
        elif isinstance(value, (CodeType, tuple)):
            pending += value if isinstance(value, tuple) else value.co_consts
    return {name for name, said in QUANTITIES.items() if texts.issuperset(said)}


def seen_table() -> str:
    """Framework x stage, and framework x quantity."""
    rows = [["framework", "versions", *STAGES]]
    known = [["framework", *QUANTITIES]]
    for name, adapter in adapters().items():
        shown = stages(adapter)
        rows.append([name, adapter.versions or "any", *(shown.get(s, "") for s in STAGES)])
        said = quantities(adapter)
        known.append([name, *("yes" if each in said else "" for each in QUANTITIES)])
    return f"{markdown(rows)}\n\n{markdown(known)}"


def resolved_table() -> str:
    """Framework, version, how many of the rows that it is said to have it has."""
    rows = [["framework", "version", "rows that resolve"]]
    for name, adapter in adapters().items():
        package = adapter.framework.split(".")[0]
        for version in versions(package):
            own = [h for h in adapter.hooks if h.target.split(".")[0] == package]
            hooks = [hook for hook in own if satisfies(version, hook.versions)]
            there = [hook for hook in hooks if found_at(hook, package, version)]
            lacking = ", ".join(f"`{short(h)}`" for h in hooks if h not in there)
            count = f"{len(there)} of {len(hooks)}" + (f" (not {lacking})" if lacking else "")
            rows.append([name, version, count])
    return markdown(rows)


def short(hook: Hook) -> str:
    """A target without its packages."""
    return hook.target.rpartition(".")[2] if ":" not in hook.target else hook.target.split(":")[1]


def imported_table() -> str:
    """Importer, and which stages its figures have a timer for."""
    rows = [["`rltrace import …`", "reads"]]
    for name in sorted(importers()):
        if name in MAPPED:
            rows.append([f"{name} … --map FILE", "spans of anybody's, by a mapping"])
        elif name in SCHEMES:
            rows.append([name, f"figures of a step: {_timed(name)}{_MORE.get(name, '')}"])
        else:
            rows.append([name, _MORE.get(name, "figures of a step")])
    return markdown(rows)


def _timed(name: str) -> str:
    found: set[str] = set()
    for records in ([], [Record(0, dict.fromkeys(_TELLING, 1.0))]):
        parts = SCHEMES[name].told(records, {})
        found |= {*parts.inside.values(), *parts.aside.values(), *parts.after.values()}
    return ", ".join(stage for stage in STAGES if stage in found)


OWN = ("verl", "openrlhf", "trl", "torchtitan")  # whose readers tell more than their tables
SCHEMES = {name: Scheme(name, table_of(name)) for name in log_tables() if name not in OWN}
_TELLING = ("perf/rollout_time", "perf/train_wait_time", "time/generate_rollouts")
"""Metrics by which a scheme tells a trainer with more timers from one with fewer."""


_MORE = {
    "areal": "; or its events of one process, or the sessions of all",
    "miles": "; or the dashboard's phases",
    "torchtitan": "spans of the structured log of every rank",
}


def markdown(rows: list[list[str]]) -> str:
    """A Markdown table; the first row is its heading."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def made() -> str:
    """What stands between the two marks."""
    parts = [
        "## What is seen, by stage", seen_table(),
        "## Which rows resolve in which version", resolved_table(),
        "## Which logs can be imported", imported_table(),
        "## The newest release of each, as it ran", LATEST_IS, latest_table(latest()),
    ]  # fmt: skip
    return "\n\n".join(parts)


def latest() -> dict[str, dict[str, Any]]:
    """What `make frameworks-latest` found, by framework."""
    found: dict[str, dict[str, Any]] = json.loads(LATEST.read_text("utf-8"))
    return found


def latest_table(found: dict[str, dict[str, Any]]) -> str:
    rows = [[
        *("framework", "newest release", "tried on", "Python", "rows that resolve"),
        *("options that exist", "quick suite", "what broke"),
    ]]  # fmt: skip
    for name, one in found.items():
        counts = [" of ".join(map(str, one[key] or ("–",))) for key in ("rows", "options")]
        suite = "{} passed, {} failed, {} skipped".format(*one["suite"]) if one["suite"] else "–"
        released = f"{one['version']} ({one['released']})" if one["version"] else "–"
        broke = "<br>".join(text.replace("|", "\\|") for text in one["broke"]) or "nothing"
        rows.append([name, released, one["day"], one["python"] or "–", *counts, suite, broke])
    return markdown(rows)


def main() -> None:
    """Writes the tables into the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{made()}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
