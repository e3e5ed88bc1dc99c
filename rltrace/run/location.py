"""Where runs lie: `rltrace-runs/` in the working directory, one directory a run."""

from __future__ import annotations

import re
import time
from pathlib import Path

from rltrace.trace.errors import RltraceError
from rltrace.trace.redacted import redacted
from rltrace.trace.run_dir import RUN_FILE, holds_run, read_run_json

RUNS_FOLDER = "rltrace-runs"

_SETTING = re.compile(r"[A-Za-z_]\w*=")  # of the environment, as `env` takes them
_LAUNCHERS = {"python", "python3", "bash", "sh", "torchrun", "accelerate", "uv", "ray", "env"}


def new_run_path(command: list[str], folder: Path | None = None) -> Path:
    """A directory that does not exist yet: `rltrace-runs/<UTC time>-<name of the command>`. Errors:
    OSError when there is no working directory any more."""
    folder = folder if folder is not None else Path.cwd() / RUNS_FOLDER
    stem = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{_name(command)}"
    path, number = folder / stem, 2
    while path.exists():
        path, number = folder / f"{stem}-{number}", number + 1
    return path


def free_path(command: list[str], out: Path | None) -> Path:
    """Where a new run can go: `out`, or a name beside it where that is a run already, or inside it
    where it holds something else; without `out` see `new_run_path`. Errors: OSError."""
    if out is None:
        return new_run_path(command).absolute()
    stem, number = out.absolute(), 2
    path = stem
    while holds_run(str(path)):
        path, number = stem.with_name(f"{stem.name}-{number}"), number + 1
    if path.is_dir() and any(path.iterdir()) and not holds_run(str(path)):
        return new_run_path(command, path)
    return path


def find_run(given: str | Path | None) -> Path:
    """The run that a command is about: the one given, or the newest here. Errors: `RltraceError`
    when there is none."""
    if given is not None:
        return Path(given)
    runs = list_runs() if Path(RUNS_FOLDER).exists() else []
    if not runs:
        here = f"there is no run in {RUNS_FOLDER}/ here"
        raise RltraceError(f"{here}: record one with `rltrace wrap -- python train.py`")
    return runs[-1]


def is_newest(run: Path) -> bool:
    """Whether commands here are about this run where they are given none."""
    runs = list_runs()
    return bool(runs) and runs[-1].absolute() == run


def list_runs(folder: Path | None = None) -> list[Path]:
    """The runs of a folder (default: `rltrace-runs/` here), oldest first. Errors: `RltraceError`
    for a folder that does not exist."""
    if folder is not None and not folder.is_dir():
        raise RltraceError(f"{folder} is no folder: give one that holds runs")
    files = (folder or Path(RUNS_FOLDER)).glob(f"*/{RUN_FILE}")
    # A hidden folder is a run that is still being imported.
    whole = (file for file in files if not file.parent.name.startswith("."))
    return [path for _, path in sorted((_started_ns(file), file.parent) for file in whole)]


def _started_ns(run_file: Path) -> int:
    """When a run began; 0 for one that cannot be read, so that it is never taken for the newest."""
    try:
        started = read_run_json(str(run_file.parent)).get("start_real_ns")
    except RltraceError:
        return 0
    return started if isinstance(started, int) else 0


def _name(command: list[str]) -> str:
    """The part of a command line that people would call the job: the first script or module."""
    words = [Path(word).name for word in redacted(command) if not _SETTING.match(word)]
    for before, word in zip(["", *words], words, strict=False):
        if before == "-m":
            return _filename(word.split(".")[-1])
        if not word.startswith("-") and word not in _LAUNCHERS and not word.startswith("python"):
            return _filename(word.removesuffix(".py").removesuffix(".sh"))
    return "job"


def _filename(text: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text[:40])
    return kept.strip("-.") or "job"
