"""The one exception that users see: a clear sentence and an exit code."""

from __future__ import annotations

import re

OK = 0
ANSWER_IS_NO = 1
WRONG_USAGE = 2
CANNOT_TELL = 3
UNREADABLE = 4
OUR_MISTAKE = 70  # as in `sysexits.h`; no build takes it for an answer
INTERRUPTED = 128 + 2  # what a shell says of a program that Ctrl-C ended
NO_MEMORY = (
    "this takes more memory than a command may have: ask of fewer steps, or set RLTRACE_BOUNDS=4"
)

_LONGEST_SAID = 300  # characters of what a library says
NO_THREAD = "no more threads may be started here: `ulimit -u`, or the limit of the container"


def did_you_mean(said: str, *known: str) -> str:
    """` (did you mean rollout or reward?)` for a name that is not known; "" where none is alike."""
    from difflib import get_close_matches

    plain = {name.lower().replace("-", "_"): name for name in known}
    asked = said.lower().replace("-", "_")
    begun = [one for one in plain if asked and one.startswith(asked)]
    near = begun or get_close_matches(asked, plain)
    return f" (did you mean {' or '.join(plain[one] for one in near[:3])}?)" if near else ""


def first_line(error: Exception) -> str:
    """What a library says, without what follows: advice on its settings, a trace of its C++, every
    path that it has tried."""
    said = re.split(r"\r|\n|\\n", str(error).strip())[0].rstrip(". ")
    return said[:_LONGEST_SAID] or type(error).__name__


class RltraceError(Exception):
    """Something that the user can act on. `str(error)` is one sentence that says what to do."""

    def __init__(self, message: str, exit_code: int = UNREADABLE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class WrongUsage(RltraceError):
    """What was asked for cannot be asked so."""

    def __init__(self, message: str) -> None:
        super().__init__(message, WRONG_USAGE)
