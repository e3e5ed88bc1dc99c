"""`rltrace top`: a screen that shows a run while it is going on."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live

from rltrace.analysis.live.live_state import LiveState
from rltrace.analysis.live.recent_rows import SPARING
from rltrace.analysis.live.snapshot import Job, Snapshot
from rltrace.report.live_frame import frame
from rltrace.run.run_folders import check_followed

INTERVAL_S = 1.0
_WHEN_OVER = 5  # a run that is over is looked at this much less often
_HINT = "q quits"
_SETTLE_S = 0.05
_ANY_HEIGHT = 200


def snapshot(path: Path) -> Snapshot:
    """What is known of a run now. Errors: `RltraceError` where there is none to be read."""
    state = LiveState(path)
    time.sleep(_SETTLE_S)  # what was ending as it was read is complete by now
    state.poll()
    return _checked(state)


def show_once(path: Path, console: Console) -> None:
    """Prints one frame, as high as it needs. Errors: as `snapshot`."""
    for line in frame(snapshot(path), console.width, _ANY_HEIGHT):
        line.rstrip()
        console.print(line, no_wrap=True, soft_wrap=True)


def watch(path: Path, console: Console, interval_s: float = INTERVAL_S) -> Job:
    """Shows a run until q or Ctrl-C is pressed; the job as of then. Errors: as `snapshot`."""
    state = LiveState(path, sparing=SPARING)
    shown = _checked(state)
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            with suppress(OSError, ValueError):  # COLUMNS, where exported, does not follow it
                console.size = ConsoleDimensions(*os.get_terminal_size(console.file.fileno()))
            lines = frame(shown, *console.size, _HINT)
            live.update(Group(*lines), refresh=True)
            if _quits(keys, interval_s * (_WHEN_OVER if shown.job.is_over else 1)):
                return shown.job
            state.poll()
            shown = state.snapshot()


def _checked(state: LiveState) -> Snapshot:
    shown = state.snapshot()
    check_followed(shown.job, shown.window is not None and bool(shown.window.recent))
    return shown


@contextmanager
def _keys() -> Iterator[int | None]:
    """The terminal's keyboard, key by key and without echo; None where stdin is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _quits(keyboard: int | None, seconds: float) -> bool:
    """Waits, and says whether somebody asked to quit meanwhile; any other key ends the wait."""
    try:
        if keyboard is None:
            time.sleep(seconds)
            return False
        if not select.select([keyboard], [], [], seconds)[0]:
            return False
        pressed = os.read(keyboard, 64)
        return not pressed or b"q" in pressed.lower()
    except KeyboardInterrupt:
        return True
