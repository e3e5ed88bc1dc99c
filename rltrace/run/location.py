"""Where runs lie: `rltrace-runs/` in the working directory, one directory a run."""

from __future__ import annotations

import time
from pathlib import Path

from rltrace.trace.errors import RltraceError
from rltrace.trace.run_dir import RUN_FILE

RUNS_FOLDER = "rltrace-runs"

_LAUNCHERS = {"python", "python3", "bash", "sh", "torchrun", "accelerate", "uv", "ray", "env"}


def new_run_path(command: list[str], folder: Path | None = None) -> Path:
    """A directory that does not exist yet: `rltrace-runs/<UTC time>-<name of the command>`."""
    folder = folder if folder is not None else Path.cwd() / RUNS_FOLDER
    stem = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{_name(command)}"
    path, number = folder / stem, 2
    while path.exists():
        path, number = folder / f"{stem}-{number}", number + 1
    return path


def find_run(given: str | Path | None) -> Path:
    """The run that a command is about: the one given, or the newest here. Errors: `RltraceError`
    when there is none."""
    if given is not None:
        return Path(given)
    runs = list_runs()
    if not runs:
        message = (
            f"there is no run in {Path.cwd() / RUNS_FOLDER}: record one with `rltrace wrap -- ...`"
        )
        raise RltraceError(message)
    return runs[-1]


def list_runs(folder: Path | None = None) -> list[Path]:
    """The runs of a folder (default: `rltrace-runs/` here), oldest first."""
    folder = folder if folder is not None else Path.cwd() / RUNS_FOLDER
    files = [(f.stat().st_ctime_ns, f.parent) for f in folder.glob(f"*/{RUN_FILE}")]
    return [path for _, path in sorted(files, key=lambda pair: (pair[1].name, pair[0]))]


def _name(command: list[str]) -> str:
    """The part of a command line that people would call the job: the first script or module."""
    words = [Path(word).name for word in command]
    for before, word in zip(["", *words], words, strict=False):
        if before == "-m":
            return _filename(word.split(".")[-1])
        if not word.startswith("-") and word not in _LAUNCHERS and not word.startswith("python"):
            return _filename(word.removesuffix(".py").removesuffix(".sh"))
    return "job"


def _filename(text: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text[:40])
    return kept.strip("-.") or "job"
