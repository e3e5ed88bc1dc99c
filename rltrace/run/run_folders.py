"""Where runs lie: places for new ones, finding and opening old ones.

Beside them `.commands/` has the whole command of each run whose description lacks a part of it. It
is the owner's alone, and no part of a run: nothing shows, ships or packs it.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrace.hooks.recorder import to_stderr
from rltrace.trace.errors import RltraceError, WrongUsage, did_you_mean
from rltrace.trace.metadata_validation import read_run_json
from rltrace.trace.run_dir import PARQUET, RUN_FILE, RUNS_FOLDER, holds_run
from rltrace.trace.safe_open import opened
from rltrace.trace.safe_text import LAUNCHERS, REDACTED, redacted

if TYPE_CHECKING:
    from rltrace.analysis.live.snapshot import Job
    from rltrace.report.notebook import Run

ONLY_ON = "linux"
WHY_ONLY = "recording needs Linux; elsewhere runs are only read"

_COMMANDS = ".commands"
_OWN = os.O_NOFOLLOW | os.O_CLOEXEC


def new_run_path(command: list[str], folder: Path | None = None) -> Path:
    """A directory that does not exist yet: `rltrace-runs/<UTC time>-<name of the command>`. Errors:
    OSError when there is no working directory any more."""
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{_name(command)}"
    return _first_free((folder or Path.cwd() / RUNS_FOLDER) / name, Path.exists)


def _first_free(path: Path, is_taken: Callable[[Path], bool]) -> Path:
    """The path itself or, where that is taken, one beside it with a number behind its name."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], others) if not is_taken(one))


def launch_path(command: list[str], launch: str) -> Path:
    return Path.cwd() / RUNS_FOLDER / f"{_name(command)}-{_filename(launch)}"


def _free_path(command: list[str], out: Path, is_shared: Callable[[Path], bool]) -> Path:
    """`out`, a name beside it where that is a run that is not `is_shared`, or one inside it where
    it holds something else. Errors: OSError."""
    path = _first_free(out.absolute(), lambda run: holds_run(str(run)) and not is_shared(run))
    if path.is_dir() and any(path.iterdir()) and not holds_run(str(path)):
        return new_run_path(command, path)
    return path


def place(
    command: list[str], out: Path | None, is_shared: Callable[[Path], bool] = lambda run: False
) -> tuple[Path, str]:
    """Where a run is safe from other users: `out`, beside or inside it, else `rltrace-runs/` here
    or in the home folder; and why not where was asked, if so. Errors: OSError."""
    if sys.platform != ONLY_ON:
        raise OSError(WHY_ONLY)
    why, home = "", Path(os.path.expanduser("~"), RUNS_FOLDER)
    for folder in (out, None, home):
        if folder is None or folder is home:
            path = new_run_path(command, folder).absolute()
        else:
            path = _free_path(command, folder, is_shared)
        path.parent.mkdir(0o755, parents=True, exist_ok=True)
        unsafe = why_unsafe(path.parent) or (why_unsafe(path, False) if path.exists() else "")
        if unsafe:
            why = why or unsafe
            continue
        if not why and out is not None and path != out.absolute():
            beside = path.parent == out.absolute().parent
            why = f"{out} holds a run already" if beside else f"{out} is not empty and no run"
        return path, why
    raise PermissionError(errno.EPERM, why)


def why_unsafe(folder: Path, sticky: bool = True) -> str:
    """Why another user can change what we write in a folder; empty where none can. A group that we
    are in is trusted; where it is `sticky`, what is ours there stays so. Errors: OSError."""
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0) and status.st_uid != _owner_of_ours(folder):
        return f"{folder} belongs to another user"
    if sticky and status.st_mode & stat.S_ISVTX:
        return ""
    ours = status.st_gid in (os.getegid(), *os.getgroups())
    if status.st_mode & (stat.S_IWOTH if ours else stat.S_IWOTH | stat.S_IWGRP):
        return f"other users can write in {folder}"
    return ""


def _owner_of_ours(folder: Path) -> int:
    """Whom a file system has for the owner of what we make: servers know users of their own."""
    path = folder / f".rltrace-{os.urandom(6).hex()}"
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600) as file:
        path.unlink()
        return os.fstat(file).st_uid


def find_run(given: str | Path | None) -> Path:
    """The run that is given, or the newest here. Errors: `RltraceError` when there is none."""
    if given is not None:
        return Path(given)
    if not (runs := list_runs()):
        here = f"there is no run in {RUNS_FOLDER}/ here"
        raise RltraceError(f"{here}: record one with `rltrace wrap -- python train.py`")
    newest = _newest(runs)
    if newest != runs[-1]:
        to_stderr(f"{runs[-1].name} is the newest run and recorded nothing: this is {newest.name}")
    return newest


def _newest(runs: list[Path]) -> Path:
    for run in reversed(runs):
        for folder in (run / "spans", run / PARQUET / "spans"):
            if folder.is_dir() and any(folder.iterdir()):
                return run
    return runs[-1]


def named_run(name: str) -> Path:
    """The run here that has this name, or whose name alone begins so; where no name does, the path.
    Errors: `RltraceError` where several do."""
    path = Path(name)
    if os.path.exists(name) or not Path(RUNS_FOLDER).is_dir():  # pathlib raises for a long one
        return path
    runs = list_runs()
    begun = [run for run in runs if run.name.startswith(name)]
    found = [run for run in begun if run.name == name] or begun
    if len(found) > 1:
        some = ", ".join(run.name for run in found[:4]) + ", ..." * (len(found) > 4)
        raise WrongUsage(f"{len(found)} runs have names that begin with {name}: {some}")
    if not found and os.sep not in name and (near := did_you_mean(name, *(r.name for r in runs))):
        raise RltraceError(f"there is no run {name} here{near}: `rltrace ls` lists them")
    return found[0] if found else path


def is_newest(run: Path) -> bool:
    """Whether commands here are about this run where they are given none."""
    return bool(runs := list_runs()) and _newest(runs).absolute() == run


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
    """0 for one that cannot be read, so that it is never taken for the newest."""
    with suppress(RltraceError):
        started = read_run_json(str(run_file.parent)).get("start_real_ns")
        return started if isinstance(started, int) else 0
    return 0


def keep_command(run: Path, command: list[str]) -> None:
    """Puts the whole command of a new run beside it, where its description lacks a part of it.
    Errors: OSError, also where the folder is not the owner's alone."""
    told = read_run_json(str(run))
    if told["command"] == command:
        return
    with suppress(FileExistsError):
        os.mkdir(run.parent / _COMMANDS, 0o700)
    with _commands(run) as folder:
        _write(folder, ".gitignore", "*\n")
        for name in os.listdir(folder):  # of runs that were deleted since, or are made anew
            if name[0] != "." and (name == told["id"] or not holds_run(f"{run.parent}/{name}")):
                os.unlink(name, dir_fd=folder)
        whole = {"start_real_ns": told["start_real_ns"], "command": command}
        _write(folder, told["id"], json.dumps(whole))


def whole_command(run: Path, told: Mapping[str, Any]) -> list[str] | None:
    """The command of a run, from its description; None where a part of it is not known here."""
    command = [str(word) for word in told.get("command") or ()]
    if not any(REDACTED in word for word in command):
        return command
    name = os.path.basename(str(told.get("id")))
    with suppress(OSError, ValueError, TypeError, LookupError), _commands(run) as folder:
        with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | _OWN, dir_fd=folder)) as file:
            _refuse_others(file.fileno(), stat.S_IFREG)
            whole = json.load(file)
        if whole["start_real_ns"] == told.get("start_real_ns"):
            return list(map(str, whole["command"]))
    return None


@contextmanager
def _commands(run: Path) -> Iterator[int]:
    """A descriptor of the folder beside `run`. Errors: OSError."""
    folder = os.open(run.absolute().parent / _COMMANDS, os.O_RDONLY | os.O_DIRECTORY | _OWN)
    try:
        _refuse_others(folder, stat.S_IFDIR)
        yield folder
    finally:
        os.close(folder)


def _refuse_others(file: int, kind: int) -> None:
    """Errors: OSError for what somebody else could have written or can read: it would be run."""
    status = os.fstat(file)
    mine = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    if not mine or stat.S_IFMT(status.st_mode) != kind:
        raise PermissionError(f"{_COMMANDS} is not its owner's alone")


def _write(folder: int, name: str, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OWN
    with suppress(FileExistsError), open(os.open(name, flags, 0o600, dir_fd=folder), "w") as file:
        file.write(text)


def _name(command: list[str]) -> str:
    """What people would call the job: the first script or module."""
    kept = [word for word in redacted(command) if REDACTED not in word and "=" not in word]
    words = [Path(word).name for word in kept]
    for before, word in zip(["", *words], words, strict=False):
        if word == "-c":
            break  # what follows is code, and then what each rank may have its own of
        if before == "-m":
            return _filename(word.split(".")[-1])
        if not word.startswith("-") and word not in LAUNCHERS and not word.startswith("python"):
            return _filename(word.removesuffix(".py").removesuffix(".sh"))
    return "job"


def _filename(text: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text[:40])
    return kept.strip("-.") or "job"


def open_readable(path: Path) -> Run:
    """Errors: `RltraceError` when there is no run, or nothing of it can be read."""
    from rltrace.report.notebook import open_run
    from rltrace.trace.read.run_losses import check_readable

    run = open_run(path)
    check_readable(run)
    return run


def open_phase(path: Path, phase: int | None = None) -> Run:
    """A readable run, narrowed to one of its phases (None: the last). Errors: `RltraceError`."""
    from rltrace.analysis.timeline.analysed_part import StepSelection, narrow

    run = open_readable(path)
    narrow(run, StepSelection(phase=phase))
    return run


def check_followed(job: Job, found: bool) -> None:
    """Errors: `RltraceError` for a run that is over and of which nothing can be read, which is
    looked at only where nothing was `found` by who follows it."""
    from rltrace.analysis.live.snapshot import DELETED

    if job.is_over and job.state != DELETED and not found:
        open_readable(Path(job.path))
