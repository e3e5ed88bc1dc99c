"""A baseline: what runs that were good did, as small JSON.

    {"format": "rltrace-baseline", "schema_version": 1, "rltrace_version": ..., "created": ...,
     "hardware": {...}, "framework": {...}, "settings": {...},
     "runs": [{"run": ..., "start_ns": ..., "steps": [...], "columns": {"length_s": [...], ...}}]}

It has up to `panel.MOST_STEPS` steps of a run and `MOST_RUNS` runs; 100 steps take about 20 kB.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import combinations
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import numpy as np

from rltrace.analysis.figures.devices import CORE, count_devices, framework_of
from rltrace.analysis.fixes.job_settings import Difference, current_settings, differing
from rltrace.analysis.gate.metrics import LAG, LENGTH, REWARD
from rltrace.analysis.gate.paired_steps import MOST_LAG, MOST_STEPS, RunSeries, series_of
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage
from rltrace.trace.job_devices import AGENT, cores_of
from rltrace.trace.read.bounds import EVER_NS
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.read.stated_tables import checked, refuse
from rltrace.trace.untrusted_files import STRICTLY, packaged_toml, parsed, text_given, write_given

FORMAT = "rltrace-baseline"
SCHEMA = 1
MOST_RUNS = 40
_LEAST, _MOST = 1e-12, 1e18  # of a figure that is not 0: beyond are no seconds, tokens or bytes
VERSIONS = ("framework version", "python")  # may be the very change that is judged: only told

Facts = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Baseline:
    """Runs to judge others by, and how they were done. `created` is ISO 8601 in UTC."""

    rltrace_version: str
    created: str
    hardware: Facts
    framework: Facts
    settings: Facts
    runs: tuple[RunSeries, ...]


def make_baseline(runs: Sequence[OpenedRun], *, anyway: bool = False) -> Baseline:
    """The baseline of these runs. Errors: `RltraceError` (wrong usage) where they differ in
    workload or hardware, are the same run or are too many, (cannot tell) where one has no complete
    step, (unreadable) where one has an alarm and `anyway` is not set."""
    if not 1 <= len(runs) <= MOST_RUNS:
        raise WrongUsage(f"a baseline is made of 1 to {MOST_RUNS} runs")
    of_first = _facts(runs[0])
    for other in runs[1:]:
        if differs := facts_that_differ(of_first, _facts(other)):
            raise WrongUsage(
                f"{runs[0].path} and {other.path} are no runs of one baseline: {told(differs)}"
            )
    found = complete_series(runs, "keep")
    for run in runs:
        if not anyway and (why := wrong_with(run)):
            raise RltraceError(f"{run.path} is no run to hold others to (--anyway keeps it): {why}")
    if any(one.is_same(other) for one, other in combinations(found, 2)):
        raise WrongUsage("a run counts once in a baseline: the same was given twice")
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    version = str(runs[0].meta.get("rltrace_version") or "")
    facts = hardware_of(runs[0]), framework_facts(runs[0]), settings_of(runs[0])
    return Baseline(version, created, *facts, tuple(found))


def differences(run: OpenedRun, baseline: Baseline) -> tuple[Difference, ...]:
    """What `run` was done on, with, or told to do, otherwise than the baseline's runs."""
    known = {**baseline.hardware, **baseline.framework, **baseline.settings}
    return facts_that_differ(known, _facts(run))


def told(differs: Sequence[Difference]) -> str:
    """The differences in a text of one line: `devices 8 and 4, placement 'async' and ...`."""
    return ", ".join(f"{d.name} {d.before!r} and {d.after!r}" for d in differs)


def write_baseline(baseline: Baseline, path: Path) -> None:
    """Writes it as JSON. Errors: `RltraceError` where the file cannot be written."""
    runs = []
    for one in baseline.runs:
        columns = {name: _plain(column) for name, column in one.columns.items()}
        runs.append({**vars(one), "steps": one.steps.tolist(), "columns": columns})
    data = {"format": FORMAT, "schema_version": SCHEMA, **vars(baseline), "runs": runs}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    write_given(path, f"{text}\n".encode())


def _plain(column: Any) -> list[float | int | None]:
    """Six digits of each figure, whole numbers without a point, null for an unknown one."""
    kept = [None if not math.isfinite(x) else float(f"{x:.6g}") for x in column.tolist()]
    return [int(x) if x is not None and x.is_integer() else x for x in kept]


_FACTS, _LAGS = {"*": "fact"}, {f"{LAG}{lag}" for lag in range(MOST_LAG + 1)}
_RUN = {"run": "text", "start_ns": [-EVER_NS, EVER_NS], "steps": "counts",
        "columns": {LENGTH: "figures", "*": "figures"}}  # fmt: skip
_FILE = {
    **dict.fromkeys(("rltrace_version", "created"), "text"),
    **dict.fromkeys(("hardware", "framework", "settings"), _FACTS),
    "runs": [_RUN],
}


def read_baseline(path: Path) -> Baseline:
    """Errors: `RltraceError` where the file is no baseline, damaged, or of another schema."""
    try:
        data = parsed(text_given(path), **STRICTLY)
    except OSError as error:
        raise RltraceError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RltraceError(f"{path} is no baseline: it is no JSON ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise RltraceError(f"{path} is no baseline: `rltrace baseline RUN... -o FILE` makes one")
    if (schema := data.get("schema_version")) != SCHEMA or isinstance(schema, bool):
        raise RltraceError(
            f"{path} is a baseline of schema version {shown(schema)}, and this rltrace reads "
            f"version {SCHEMA}: make it anew"
        )
    try:
        found = checked(_FILE, data, "", by_us=True)
        if not 1 <= len(found["runs"]) <= MOST_RUNS:
            refuse("", f"{len(found['runs'])} runs")
        return Baseline(**{**found, "runs": tuple(_series(**one) for one in found["runs"])})
    except WrongUsage as error:
        raise RltraceError(f"{path} is a damaged baseline: {error}") from None


def _series(run: str, start_ns: int, steps: list[int], columns: Mapping[str, Any]) -> RunSeries:
    """Errors: `RltraceError` for what no run did."""
    if len(steps) > MOST_STEPS:
        refuse("", f"more than {MOST_STEPS:,} steps")
    for name, figures in columns.items():
        if len(figures) != len(steps):
            refuse("", f"column {name} is not as long as the steps")
        least = -_MOST if name == REWARD else _LEAST
        if not all(least <= one <= _MOST or one == 0 for one in figures if one is not None):
            refuse("", f"column {name} holds figures that cannot be")
        if name.startswith(LAG) and name not in _LAGS:
            refuse("", f"column {name} is of no lag")
    if not all(columns[LENGTH]):
        refuse("", f"column {LENGTH} must have the length of each step")
    arrays = {name: np.array(column, np.float64) for name, column in columns.items()}
    return RunSeries(run, start_ns, np.array(steps, np.int64), arrays)


def complete_series(runs: Sequence[OpenedRun], to: str) -> list[RunSeries]:
    """Errors: `RltraceError` (cannot tell) where a run has no complete step to do that with."""
    found = [series_of(run) for run in runs]
    for run, series in zip(runs, found, strict=True):
        if not series.size:
            why = wrong_with(run)
            says = f"{run.path} has no complete step to {to}" + (f": {why}" if why else "")
            raise RltraceError(says, CANNOT_TELL)
    return found


# --- runs with an alarm: neither do they pass a gate, nor are others held to them. How fast a job
# was that crashed or trained on no numbers is no answer. Stalls are left to the tests of lengths of
# steps, as a busy machine stalls any job.


def unwell(runs: Sequence[OpenedRun]) -> tuple[str, ...]:
    """A sentence for each run that has an alarm, with its name where there are several."""
    found = [(run.path.name, why) for run in runs if (why := wrong_with(run))]
    return tuple(f"{name}: {why}" if len(runs) > 1 else why for name, why in found)


def wrong_with(run: OpenedRun) -> str:
    """What is wrong with `run`, in a text of one line; empty where nothing is."""
    alarms = RunAnalysis(run).health.alarms
    return "; ".join(one.says for one in alarms if one.forbids and one.kind != "stall")


# --- on what, with what and with which settings a run was done: what makes two runs comparable

_STATED = ("placement", "objective", "updates_per_version")


def hardware_of(run: OpenedRun) -> Facts:
    devices = count_devices(run)
    agents = [process.facts for process in run.processes if process.role == AGENT]
    cores = cores_of(run.processes)
    cpus = sorted({str(facts["cpu"]) for facts in agents if facts.get("cpu")})
    return {
        "device": devices.name or devices.kind,
        "devices": devices.count,
        "nodes": len({process.node for process in run.processes}),
        "cores": sum(cores.values()) or (devices.count if devices.kind == CORE else None),
        "cpu": ", ".join(cpus) or None,
    }


def framework_facts(run: OpenedRun) -> Facts:
    """The framework, its version and Python's (major and minor); None where it is not known."""
    name, version = framework_of(run)
    pythons = {".".join(str(p.facts.get("python") or "").split(".")[:2]) for p in run.processes}
    return {
        "framework": name or None,
        "framework version": version or run.meta.get("framework_version"),
        "python": ", ".join(sorted(pythons - {""})) or None,
    }


def settings_of(run: OpenedRun) -> Facts:
    """What the job states it was told to do, and its processes by role and models' parameters."""
    facts = [process.facts for process in run.processes]
    roles = Counter(p.role for p in run.processes if p.role and p.role != AGENT)
    sizes = [one["parameters"] for one in facts if isinstance(one.get("parameters"), int)]
    settings = current_settings(run, *framework_of(run))
    return {
        **{name: value for name, value in sorted(settings.items()) if _is_work(name)},
        **{name: one[name] for one in facts for name in _STATED if one.get(name) is not None},
        "parameters": max(sizes, default=None),
        **{f"{role} processes": n for role, n in sorted(roles.items())},
    }


def facts_that_differ(before: Facts, after: Facts) -> tuple[Difference, ...]:
    """What both state and state differently: what one does not tell is no difference."""
    return tuple(one for one in differing(before, after) if None not in (one.before, one.after))


def _facts(run: OpenedRun) -> Facts:
    return {**hardware_of(run), **framework_facts(run), **settings_of(run)}


def _is_work(name: str) -> bool:
    plain = name.lower().replace("-", "_").strip("_")
    words = plain.replace(".", "_").split("_")
    none = packaged_toml("analysis/gate/data/settings.toml")
    return plain.rpartition(".")[2] not in none["last"] and not {*words} & {*none["words"]}
