"""Where runs lie: `rltrace-runs/` in the working directory, one directory a run.

Beside them `.commands/` has the whole command of each run whose description lacks a part of it. It
is the owner's alone, and no part of a run: nothing shows, ships or packs it.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rltrace.trace.errors import RltraceError
from rltrace.trace.redacted import LAUNCHERS, REDACTED, redacted
from rltrace.trace.run_dir import RUN_FILE, holds_run, read_run_json

RUNS_FOLDER = "rltrace-runs"

_COMMANDS = ".commands"
_OWN = os.O_NOFOLLOW | os.O_CLOEXEC


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


def keep_command(run: Path, command: list[str]) -> None:
    """Puts the whole command of a new run beside it, where its description lacks a part of it.
    Errors: OSError, also where the folder is not the owner's alone."""
    told = read_run_json(str(run))
    if told["command"] == command:
        return
    with suppress(FileExistsError):
        os.mkdir(run.parent / _COMMANDS, 0o700)
    folder = _commands(run)
    try:
        _write(folder, ".gitignore", "*\n")
        for name in os.listdir(folder):  # of runs that were deleted since, or are made anew
            if name[0] != "." and (name == told["id"] or not holds_run(f"{run.parent}/{name}")):
                os.unlink(name, dir_fd=folder)
        whole = {"start_real_ns": told["start_real_ns"], "command": command}
        _write(folder, told["id"], json.dumps(whole))
    finally:
        os.close(folder)


def whole_command(run: Path, told: Mapping[str, Any]) -> list[str] | None:
    """The command of a run, of which the description is given; None where a part of it is not
    known here."""
    command = [str(word) for word in told.get("command") or ()]
    if not any(REDACTED in word for word in command):
        return command
    try:
        folder = _commands(run)
    except OSError:
        return None
    try:
        name = os.path.basename(str(told.get("id")))
        with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | _OWN, dir_fd=folder)) as file:
            _refuse_others(file.fileno(), stat.S_IFREG)
            whole = json.load(file)
        same = whole["start_real_ns"] == told.get("start_real_ns")
        return list(map(str, whole["command"])) if same else None
    except (OSError, ValueError, TypeError, LookupError):
        return None
    finally:
        os.close(folder)


def _commands(run: Path) -> int:
    """A descriptor of the folder that has the commands of runs beside `run`. Errors: OSError."""
    folder = os.open(run.absolute().parent / _COMMANDS, os.O_RDONLY | os.O_DIRECTORY | _OWN)
    try:
        _refuse_others(folder, stat.S_IFDIR)
    except OSError:
        os.close(folder)
        raise
    return folder


def _refuse_others(file: int, kind: int) -> None:
    """Errors: OSError for what somebody else could have written or can read: it would be run."""
    status = os.fstat(file)
    if (
        status.st_uid != os.geteuid()
        or status.st_mode & 0o077
        or stat.S_IFMT(status.st_mode) != kind
    ):
        raise PermissionError(f"{_COMMANDS} is not its owner's alone")


def _write(folder: int, name: str, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OWN
    with suppress(FileExistsError), open(os.open(name, flags, 0o600, dir_fd=folder), "w") as file:
        file.write(text)


def _name(command: list[str]) -> str:
    """The part of a command line that people would call the job: the first script or module."""
    kept = [word for word in redacted(command) if REDACTED not in word and "=" not in word]
    words = [Path(word).name for word in kept]
    for before, word in zip(["", *words], words, strict=False):
        if before == "-m":
            return _filename(word.split(".")[-1])
        if not word.startswith("-") and word not in LAUNCHERS and not word.startswith("python"):
            return _filename(word.removesuffix(".py").removesuffix(".sh"))
    return "job"


def _filename(text: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text[:40])
    return kept.strip("-.") or "job"
