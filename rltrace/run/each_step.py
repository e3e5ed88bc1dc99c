"""Telling of each step of a job while it runs: for `rltrace wrap --live` and `--log-steps`.

A thread of `wrap`'s own follows the run. The job comes first: whatever goes wrong here is said once
and ends the telling, not the job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rltrace.analysis.live.snapshot import StepDone

_INTERVAL_S = 1.0
_LAST_STEPS = 100  # of more steps between two looks the first ones are not told


class EachStep:
    """Calls each of `tell` with each step of the run in `path`, as it ends; `say` is told what goes
    wrong."""

    def __init__(
        self,
        path: Path,
        tell: Sequence[Callable[[StepDone], None]],
        say: Callable[[str], None],
    ) -> None:
        self._path = path
        self._tell = tell
        self._say = say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="rltrace-steps", daemon=True)

    def start(self) -> None:
        """Begins. The thread takes over which signals are blocked: all that `wrap` waits for have
        to be, else one might end `wrap` from here."""
        try:
            self._thread.start()
        except RuntimeError as error:  # as many processes and threads as there may be
            self._say(f"nothing is said of steps: {error}")

    def finish(self) -> None:
        """The job is over: tells what is left to tell."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        try:
            from rltrace.analysis.live.state import LiveState

            state = LiveState(self._path, last=_LAST_STEPS)
            told_until_ns = settled_until_ns = 0
            while True:
                over = self._over.wait(_INTERVAL_S)
                state.poll()
                if over:
                    state.poll()  # what ended just before is complete at the second look
                shown = state.snapshot()
                recent = shown.window.recent if shown.window is not None else ()
                latest_ns = recent[-1].end_ns if recent else 0
                # What ends with a step comes in by the next look.
                until_ns = latest_ns if over else settled_until_ns
                for step in recent:
                    if told_until_ns < step.end_ns <= until_ns:
                        for tell in self._tell:
                            tell(step)
                told_until_ns, settled_until_ns = max(told_until_ns, until_ns), latest_ns
                if over:
                    return
        except Exception as error:  # the job goes on
            self._say(f"no more is said of steps: {type(error).__name__}: {error}")
