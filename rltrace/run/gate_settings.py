"""A gate's settings in project files; gates and baselines by path.

The settings are `[gate]` of `rltrace.toml`, or `[tool.rltrace.gate]` of `pyproject.toml`. A command
line or a mark is laid over them. docs/how-to/gate.md has an example.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrace.analysis.gate.metrics import (
    MAX_REGRESSION,
    WALL,
    Condition,
    parse_condition,
    stated_in,
)
from rltrace.run.run_folders import open_phase
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.untrusted_files import toml_given

if TYPE_CHECKING:
    from rltrace.analysis.gate.baseline import Baseline
    from rltrace.analysis.gate.metrics import Judgement

FILE, PROJECT_FILE = "rltrace.toml", "pyproject.toml"
DEFAULT = "goodput=3%"
"""The condition of a gate that has a baseline and is told none."""


@dataclass(frozen=True)
class GateSettings:
    conditions: tuple[Condition, ...] = ()
    baseline: Path | None = None

    def over(self, other: GateSettings) -> GateSettings:
        """These settings over others: a limit takes the place of that metric's, a wall that of
        another."""
        stated = {_place(one) for one in self.conditions}
        kept = [one for one in other.conditions if _place(one) not in stated]
        baseline = other.baseline if self.baseline is None else self.baseline
        return GateSettings((*self.conditions, *kept), baseline)

    def completed(self) -> GateSettings:
        """With the condition that goes without saying. Errors: `RltraceError` (wrong usage) where
        there is nothing to hold a run to."""
        if not self.conditions and self.baseline is None:
            raise WrongUsage("nothing to gate by: give --baseline FILE, or a limit such as --max")
        if not self.conditions:
            return GateSettings((parse_condition(MAX_REGRESSION, DEFAULT),), self.baseline)
        compared = [one for one in self.conditions if one.kind == MAX_REGRESSION]
        if compared and self.baseline is None:
            needs = f"{compared[0].text} needs a baseline"
            raise WrongUsage(f"{needs}: --baseline FILE (rltrace baseline)")
        return self


def _place(condition: Condition) -> tuple[str, str]:
    return condition.kind, "" if condition.kind == WALL else condition.subject


def stated(options: Mapping[str, Sequence[str]], baseline: Path | None) -> GateSettings:
    """Settings from the words of a command line, by kind of condition. Errors: `RltraceError`."""
    conditions = [parse_condition(kind, text) for kind, texts in options.items() for text in texts]
    return GateSettings(tuple(conditions), baseline)


def from_table(table: Mapping[str, Any], folder: Path) -> GateSettings:
    """Settings from a table of a file; its baseline lies beside the file in `folder`. Errors:
    `RltraceError` (wrong usage)."""
    conditions, baseline = stated_in(table)
    return GateSettings(conditions, None if baseline is None else folder / baseline)


def read_settings(folder: Path) -> GateSettings:
    """The settings of the project that `folder` lies in: the nearest file that has some, in it or
    above. None there: empty ones. Errors: `RltraceError` for a file that is not TOML, or wrong."""
    for place in (folder, *folder.parents):
        for name, keys in ((FILE, ("gate",)), (PROJECT_FILE, ("tool", "rltrace", "gate"))):
            table = _table(place / name, keys)
            if table is not None:
                try:
                    return from_table(table, place)
                except RltraceError as error:
                    raise RltraceError(f"{place / name}: {error}", error.exit_code) from None
    return GateSettings()


def _table(path: Path, keys: tuple[str, ...]) -> Mapping[str, Any] | None:
    """The table under these keys; None where the file or the table is not there."""
    if not os.path.exists(path):  # there, and to be seen
        return None
    found: Any = toml_given(path)
    unknown = found.keys() - {keys[0]}
    if path.name == FILE and unknown:  # a limit that nobody reads is worse than none
        raise WrongUsage(f"{path} has no use for {min(unknown)!r}: a gate's limits stand in [gate]")
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    if found is None or isinstance(found, Mapping):
        return found
    raise WrongUsage(f"{path}: {'.'.join(keys)} must be a table")


def gate(runs: Sequence[Path], settings: GateSettings, phase: int | None = None) -> Judgement:
    """Judges runs of one code together, or a phase of each (None: the last). Errors:
    `RltraceError`, as `judge` and `read_baseline`, and (wrong usage) where there is nothing to hold
    them to."""
    from rltrace.analysis.gate.baseline import read_baseline
    from rltrace.analysis.gate.judge import judge

    asked = settings.completed()
    baseline = None if asked.baseline is None else read_baseline(asked.baseline)
    return judge([open_phase(path, phase) for path in runs], baseline, asked.conditions)


def keep_baseline(
    runs: Sequence[Path], path: Path, *, anyway: bool = False, phase: int | None = None
) -> Baseline:
    """Makes a baseline of runs, or of a phase of each, and writes it; `anyway`: of runs with an
    alarm, too. Errors:
    `RltraceError`, as `make_baseline`, and where it cannot be written."""
    from rltrace.analysis.gate.baseline import make_baseline, write_baseline

    if path.is_dir():
        raise WrongUsage(f"{path} is a directory: name the file to write")
    made = make_baseline([open_phase(run, phase) for run in runs], anyway=anyway)
    write_baseline(made, path)
    return made
