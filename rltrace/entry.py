"""The program `rltrace`: starts a command and ends with its exit code.

A command ends with its answer, or with one sentence on stderr. The exit codes are those of
docs/reference/api.md, whatever goes wrong and whenever: also while modules are imported. Nothing
that a command needs is imported before.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any, NoReturn
else:
    import _signal as signal  # `signal` itself takes a while, and Ctrl-C may come meanwhile

TRACEBACK = "RLTRACE_TRACEBACK"
"""A variable that has a mistake of ours shown whole."""

_JOBS = ("wrap", "experiment", "sync", "doctor")
"""Commands that start a user's programs, or load them: these may take what they like."""

_interrupted = False
_over = False  # the command has come to its end, which Ctrl-C no longer changes


def main() -> NoReturn:
    sys.unraisablehook = _unraisable
    if os.name == "nt":
        _say("Windows is not supported: rltrace records on Linux (WSL is one)")
        sys.exit(4)
    ended(_command, signal.SIG_DFL)


def program() -> NoReturn:
    """As `main`, of a process that does nothing else. After a command that reads runs it ends
    without the interpreter's last search through all objects, a twentieth of a report's time; but
    what DuckDB has spilled to disk only its own end removes."""
    try:
        main()
    except SystemExit as end:
        reading = sys.modules.get("rltrace.trace.read.run")
        if reading is None or sys.argv[1] in _JOBS or any(map(os.path.exists, reading.SPILLED)):
            raise
        atexit._run_exitfuncs()
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)


def ended(command: Callable[[], object], interrupt: Any = None) -> NoReturn:
    """Runs a command and exits with its code. `interrupt` is what Ctrl-C does from then on, by
    default what it did before."""
    global _interrupted, _over
    _interrupted = _over = False
    before = _watch_interrupt()
    try:
        _hold_streams()
        try:
            code = command()
        finally:  # here, where it can be said that nobody takes it
            if sys.stdout is not None:
                sys.stdout.flush()
        _over = True
    except SystemExit as error:
        _over = True
        if error.code is None or isinstance(error.code, int):
            raise
        sentence, code = str(error.code), 70  # a library's, which gives up
    except BaseException as error:
        _over = True
        sentence, code = _told(error)
        if code == 70 and os.environ.get(TRACEBACK):
            raise
    else:
        sys.exit(code if isinstance(code, int) else 0)
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before if interrupt is None else interrupt)
    _say(sentence)
    sys.exit(code)


def _command() -> object:
    gc.set_threshold(100_000, 20, 20)  # what a command makes it needs: looked through less often
    if sys.argv[1:2] and sys.argv[1] not in _JOBS:
        from rltrace.trace.read.bounds import hold_memory

        hold_memory()
    from rltrace.cli import main as commands

    return commands.main(prog_name="rltrace", standalone_mode=False)


def _watch_interrupt() -> Any:
    """Remembers a Ctrl-C from now on, of which libraries make other errors. The handler of before,
    if one was replaced."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            return signal.signal(signal.SIGINT, _interrupt)
    except ValueError:  # not in the main thread, to which it comes
        pass
    return None


def _interrupt(*_: object) -> None:
    global _interrupted
    _interrupted = True
    if not _over:
        raise KeyboardInterrupt


def _hold_streams() -> None:
    """Keeps the numbers of closed standard streams from files of ours. What a command starts finds
    them closed, as it would without us."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name in ("stdout", "stderr"):  # who writes to one that is closed has nobody who reads it
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _told(error: BaseException) -> tuple[str, int]:
    if _interrupted or isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    try:
        from rltrace.cli.group import told

        return told(error)
    except BaseException:  # it cannot be loaded, or there is no memory left to say more
        return f"this is a mistake in rltrace ({type(error).__name__}), or it is not whole", 70


def _say(sentence: str) -> None:
    if sentence and sys.stderr is not None:
        try:
            print(f"rltrace: {sentence}", file=sys.stderr, flush=True)
        except (OSError, ValueError):  # nobody listens any more
            pass


def _unraisable(unraisable: Any) -> None:
    """Ctrl-C where Python can raise nothing, such as while an object is deleted."""
    if _interrupted:
        _say("interrupted")
        os._exit(130)
    sys.__unraisablehook__(unraisable)
