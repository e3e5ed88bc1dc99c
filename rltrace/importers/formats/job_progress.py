"""How far a job came by its progress bar, and the exception that ended it."""

from __future__ import annotations

import re
from typing import NamedTuple

from rltrace.importers.formats.printed_figures import bare

# A trainer's bar says nothing before it, or that it is the training's: others say what they are.
_BAR = re.compile(
    r"(?:^|\])\s*(?:Train(?:ing Progress)?:\s*)?\d{1,3}%\|[^|]*\|\s*(\d{1,9})/(\d{1,9}) "
    r"\[(?:(\d{1,4}):)?(\d\d):(\d\d)<"
)
_HEAD, _NO_MEMORY = "Traceback (most recent call last)", "out of memory"
_RAISED = re.compile(
    r"(?:\[\w+\]:\s?)?(?:[\w.]*\()?((?:[a-z_]\w*\.)+[A-Z]\w*|"
    r"(?=[A-Z])\w*(?:Error|Exception|Interrupt|Exit|Timeout))\)?(?::|\s*$)"
)
_OF_LAUNCHERS = ("ChildFailedError", "CalledProcessError", "SystemExit")


class ProgressBar(NamedTuple):
    step: int = 0
    of: int = 0
    elapsed_s: int = 0


class JobProgress:
    """Takes the lines of a console. `bar` is the last one, `reached` how far that of each length
    came, `failed` the exception after which nothing went on ("": none)."""

    def __init__(self) -> None:
        self.bar = ProgressBar()
        self.reached = {0: 0}
        self._error, self._tracing = "", False

    def take(self, line: str) -> None:
        for bar in _BAR.findall(bare(line, "")) if "%|" in line else ():
            step, of, hours, minutes, seconds = (int(number or 0) for number in bar)
            if step != self.bar.step:
                self.goes_on()
            self.bar = ProgressBar(step, of, 3600 * hours + 60 * minutes + seconds)
            self.reached[of] = step
        if _HEAD in line:
            self._tracing = True
        elif (self._tracing or _NO_MEMORY in line) and (found := _RAISED.match(bare(line, ""))):
            # The last one ended the job, but for what launchers say of it; where one process runs
            # out of memory others fail, too.
            self._tracing, name = False, found[1]
            if not self._error or not (_NO_MEMORY in self._error or name.endswith(_OF_LAUNCHERS)):
                self._error = f"{name}: {_NO_MEMORY}" if _NO_MEMORY in line else name

    def goes_on(self) -> None:
        """A step came: what was raised before did not end the job."""
        self._error, self._tracing = "", False

    @property
    def failed(self) -> str:
        return self._error or "an exception that is cut off" * self._tracing
