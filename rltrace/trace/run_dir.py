"""The run directory: what lies where, and what describes a run.

docs/reference/trace-format.md says what each file holds. Every process writes only its own, so
nothing is locked. Standard library only.
"""

from __future__ import annotations

import errno
import os
import time

from rltrace.trace.clock import node_id
from rltrace.trace.job_exceptions import contained, from_outside
from rltrace.trace.safe_open import opened
from rltrace.trace.safe_text import redacted
from rltrace.trace.schema import SCHEMA_VERSION, TABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RUN_VARIABLE = "RLTRACE_RUN"  # environment variable: the absolute run directory
RUNS_FOLDER = "rltrace-runs"  # in the working directory
RUN_FILE = "run.json"
COUNTED = 64  # odd values of a kind that are written one by one, in problems/
APART_FILE = "apart.json"  # in a directory that is one node's own: where it is shipped
FETCHED_FILE = "fetched.json"  # in a directory that was brought from a URL: what of the run is here
PROCESS, NAMES, PROBLEMS, CLOCKS, NODES = "process", "names", "problems", "clocks", "nodes"
ENDS = "ends"
STACKS = "stacks"  # where threads of a node's processes wait: for its agent, and never shipped
READ_FROM = "read_from"  # in run.json: the log of a run that nobody keeps
CAPTURE_TOKENS = "capture_tokens"  # setting: token ids are recorded (`wrap --capture-tokens`)
PARQUET = "parquet"  # folder of the compacted tables (`rltrace compact`)
ELSEWHERE, NOT_WHOLE, PACK_LOST = "nodes-elsewhere", "node-not-whole", "pack-lost"
"""Problems of a run of which not all is here."""
STEP_FAILED, PROCESS_FAILED, THREAD_FAILED = "step-failed", "process-failed", "thread-failed"
"""Problems: an exception ended it."""
STUCK = "stuck"  # problem of a run, and what its node's agent last said: who the job waits for
RECORDING_STOPPED = "recording-stopped"
"""Problem of a process, said in its own file where the disk had no room for another line."""

FOLDERS = (PROCESS, NAMES, PROBLEMS, ENDS, CLOCKS, NODES, STACKS, *TABLES)

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_CANNOT_LINK = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES}


def holds_run(path: str) -> bool:
    """Whether a directory is a run, or is just becoming one."""
    return os.path.exists(f"{path}/{RUN_FILE}")


class RunExistsError(FileExistsError):
    """The directory holds a run already."""


def create_run(
    path: str, command: list[str], settings: dict[str, Any], version: str, **more: Any
) -> None:
    """Makes the run directory, for one of several that want it. `version` is rltrace's own, `more`
    goes into the description; of the command only what is harmless is kept. Nobody else can write
    there, whatever the umask. Errors: `RunExistsError`; OSError (read-only or full disk)."""
    os.makedirs(path, 0o755, exist_ok=True)
    described = {
        "id": os.path.basename(os.path.abspath(path)),
        "command": redacted(command),
        "cwd": os.getcwd(),
        "start_real_ns": time.time_ns(),
        "start_monotonic_ns": time.monotonic_ns(),
        "end_real_ns": None,
        "exit_code": None,
        "schema_version": SCHEMA_VERSION,
        "rltrace_version": version,
        "framework": None,
        "framework_version": None,
        "settings": settings,
        "price": None,
        "node": node_id(),
        "host": os.uname().nodename,
        "wrap_pid": os.getpid(),
        **more,
    }
    write_first(f"{path}/{RUN_FILE}", described)
    try:
        for folder in FOLDERS:
            os.makedirs(f"{path}/{folder}", 0o755, exist_ok=True)
    except OSError:
        os.unlink(f"{path}/{RUN_FILE}")
        raise


def write_first(path: str, value: dict[str, Any]) -> None:
    """Writes a file that nobody has written yet: its name is the claim. It gets that name whole, so
    whoever looks sees no file or all of it. Errors: `RunExistsError`; OSError."""
    temporary = f"{path}.{os.getpid()}.{os.urandom(3).hex()}.tmp"
    try:
        _write_new(temporary, _text(value))
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise RunExistsError(errno.EEXIST, "there is a run already", path) from None
        except OSError as error:
            if from_outside(error) or error.errno not in _CANNOT_LINK:
                raise
            _claim(path, temporary)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _claim(path: str, temporary: str) -> None:
    """As a link, on a file system without links (FAT, some shares): an empty file for a moment."""
    try:
        _write_new(path, b"")
    except FileExistsError:
        raise RunExistsError(errno.EEXIST, "there is a run already", path) from None
    os.replace(temporary, path)


def _write_new(path: str, text: bytes) -> None:
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
        try:
            _write(file, text, path)
        except OSError:
            os.unlink(path)
            raise


def _write(file: int, text: bytes, path: str) -> None:
    if os.write(file, text) != len(text):
        raise OSError(errno.ENOSPC, "no space left on device", path)


def write_json(path: str, value: dict[str, Any]) -> None:
    """Replaces a file at once: a reader sees the old or the new text. Errors: OSError."""
    temporary = f"{path}.{os.getpid()}.tmp"
    text = _text(value)
    try:
        with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            _write(file, text, temporary)
        os.replace(temporary, path)
    except OSError as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        if from_outside(error) or error.errno not in _NO_ROOM or not _written_over(path, text):
            raise


def _written_over(path: str, text: bytes) -> bool:
    """Writes over a file's text, within its room: on a full disk there is none for another file."""
    with contained(OSError), opened(path, os.O_WRONLY) as file:
        status = os.fstat(file)
        text = text.ljust(status.st_size)
        return len(text) <= 512 * status.st_blocks and os.pwrite(file, text, 0) == len(text)
    return False


def append_line(path: str, value: object) -> None:
    """Appends one line of JSON in a single write. Errors: OSError."""
    with opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
        _write(file, _text(value), path)


def _text(value: object) -> bytes:
    return (dumps(value) + "\n").encode("utf-8", "backslashreplace")


_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {
    ord('"'): '\\"',
    ord("\\"): "\\\\",
    0x7F: "\\u007f",
}


def dumps(value: object) -> str:
    """JSON of str, int, float, bool, None, lists, dicts; else of `str()`. Not-a-number becomes
    null. To be encoded with "backslashreplace", which makes lone surrogates JSON's escapes."""
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if value - value == 0 else "null"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(dumps, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{dumps(str(k))}:{dumps(v)}" for k, v in value.items()) + "}"
    return '"' + str(value).translate(_ESCAPES) + '"'
