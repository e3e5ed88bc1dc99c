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
_HEAD, _NO_MEMORY = "Traceback (most recent call last)", "out of memory"
_RAISED = re.compile(
    r"(?:\[\w+\]:\s?)?(?:[\w.]*\()?((?:[a-z_]\w*\.)+[A-Z]\w*|"
    r"(?=[A-Z])\w*(?:Error|Exception|Interrupt|Exit|Timeout))\)?(?::|\s*$)"
)
_OF_LAUNCHERS = ("ChildFailedError", "CalledProcessError", "SystemExit")
_MOST = 400  # characters of a line in which a mark may stand
_TOLD = packaged_toml("importers/formats/job_ends.toml")
_LOOK: dict[str, str] = _TOLD.pop("look")
_MARKS = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _TOLD.items()))
_AFTER_ALL, _WHY = {"outside", "died"}, {"device_memory", "node_memory", "limit", "interrupted"}


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
        text = bare(line[:_MOST], "")
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
            self._ignoring = False
            found = _RAISED.match(text)
            if mark and kind in _AFTER_ALL | _WHY:
                self._ended(mark[0], kind)
            elif found and (self._tracing or kind == "raised" or _NO_MEMORY in line):
                said = f": {_NO_MEMORY}" * (_NO_MEMORY in line)
                is_memory = bool(said) or found[1].endswith("OutOfMemoryError")
                self._ended(found[1] + said, "device_memory" if is_memory else "")

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
        is_cut = self._tracing and not self._ignoring
        error = self._error or "an exception that is cut off" * is_cut
        from_outside = self._kind in ("outside", "interrupted")
        return JobEnd(error, from_outside, _LOOK.get(self._kind, ""))
