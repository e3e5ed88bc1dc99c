"""How far a job came by its progress bar, and what ended it."""

from __future__ import annotations

import re
from typing import NamedTuple

from rltrace.importers.formats.printed_figures import bare
from rltrace.importers.log_records import JobEnd
from rltrace.trace.untrusted_files import packaged_toml

# A trainer's bar says nothing before it, or that it is the training's: others say what they are.
_BAR = re.compile(
    r"(?:^|\])\s*(?:Train(?:ing Progress)?:\s*)?\d{1,3}%\|[^|]*\|\s*(\d{1,9})/(\d{1,9}) "
    r"\[(?:(\d{1,4}):)?(\d\d):(\d\d)<"
)
_HEAD, _NO_MEMORY = "Traceback (most recent call last)", ("out of memory", "OutOfMemoryError")
_RAISED = re.compile(
    r"(?:\[\w+\]:\s?)?(?:[\w.]*\()?((?:[a-z_]\w*\.)+[A-Z]\w*|"
    r"(?=[A-Z])\w*(?:Error|Exception|Interrupt|Exit|Timeout))\)?(?::|\s*$)"
)
_OF_LAUNCHERS = ("ChildFailedError", "CalledProcessError", "SystemExit")
_TOLD = packaged_toml("importers/formats/job_ends.toml")
_LOOK, _WORDS = _TOLD.pop("look"), _TOLD.pop("words")
_MARKS = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _TOLD.items()))
_WHY = ("device_memory", "node_memory", "limit", "interrupted")


class ProgressBar(NamedTuple):
    step: int = 0
    of: int = 0
    elapsed_s: int = 0


class JobProgress:
    """Takes the lines of a console. `bar` is the last one, `reached` how far that of each length
    came, `end` what ended the job, after which nothing went on."""

    def __init__(self) -> None:
        self.bar = ProgressBar()
        self.reached = {0: 0}
        self._error, self._kind, self._tracing = "", "", False
        self._ignoring = self._ignored = False  # what is raised now, and what was raised last

    def take(self, line: str) -> None:
        for bar in _BAR.findall(bare(line, "")) if "%|" in line else ():
            step, of, hours, minutes, seconds = (int(number or 0) for number in bar)
            if step != self.bar.step:
                self.goes_on()
            self.bar = ProgressBar(step, of, 3600 * hours + 60 * minutes + seconds)
            self.reached[of] = step
        if not (self._tracing or self._ignoring or any(word in line for word in _WORDS)):
            return  # soon: most lines are of something else
        text = bare(line[:400], "")  # marks stand in short lines
        mark = _MARKS.search(text)
        kind = str(mark.lastgroup) if mark else ""
        if kind == "ignored":
            self._ignoring, self._tracing = True, False
        elif kind == "chained":
            self._ignoring = self._ignored
        elif _HEAD in line:
            self._tracing, self._ignored = True, False
        elif self._ignoring and self._tracing:
            if text and not text[0].isspace():
                self._ignoring, self._tracing, self._ignored = False, False, True
        elif text:
            is_memory, self._ignoring = any(sign in line for sign in _NO_MEMORY), False
            if mark and kind != "raised":
                self._ended(mark[0], kind)
            elif (self._tracing or mark or is_memory) and (found := _RAISED.match(text)):
                says = f"{found[1]}: out of memory" if is_memory else found[1]
                self._ended(says, "device_memory" * is_memory)

    def _ended(self, error: str, kind: str) -> None:
        """The last exception ended the job, but for what launchers say of it; of what tells why,
        the first did."""
        self._tracing = False
        is_raised = not (self._kind or kind or error.endswith(_OF_LAUNCHERS))
        if not self._error or is_raised or (kind in _WHY and self._kind not in _WHY):
            self._error, self._kind = error, kind

    def goes_on(self) -> None:
        """A step came: what was raised before did not end the job."""
        self._error, self._kind, self._tracing = "", "", False

    @property
    def end(self) -> JobEnd:
        cut = "an exception that is cut off" * (self._tracing and not self._ignoring)
        from_outside = self._kind in ("outside", "interrupted")
        return JobEnd(self._error or cut, from_outside, _LOOK.get(self._kind, ""))
