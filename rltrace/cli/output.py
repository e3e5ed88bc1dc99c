"""Where commands print: a terminal, a pipe or a file, of whatever encoding."""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from rltrace.trace.safe_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from rltrace.report.layout import Section

_PLAIN = str.maketrans(
    "·–—−█▉▊▋▌▍▎▏▁▂▃▄▅▆▇░▒▓─│“”’τΣ×µ²…→±≥≤✓✗",
    '----###############.:%-|""\'tSxu2~>~><+x',
)
"""What stands for our own signs where the encoding has none; one for one, so that columns stand."""

_COMMAND = re.compile(r"(?m)^(\s*):(?=:)|#(?=#\[)")
_HANDLER = "rltrace-plain"
_SOON_S = 1.0  # what is done by then needs no word


def prepare() -> None:
    """Lets stdout take any text: plain signs for ours, escapes for all else that it lacks."""
    codecs.register_error(_HANDLER, _plain)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_HANDLER)


def discard() -> None:
    """Nobody takes the output: what is flushed at exit must not fail again."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        pass  # there is no descriptor behind it


def console() -> Console:
    from rich.console import Console

    file = _Uncommanding(sys.stdout) if os.environ.get("GITHUB_ACTIONS") == "true" else None

    class Screen(Console):
        """A console that leaves a closed pipe to `Commands`, as everything else that is printed."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    return Screen(file=cast("IO[str] | None", file))


def show(sections: Iterable[Section]) -> None:
    from rltrace.report.formats import terminal_tables

    page = console()
    for section in sections:
        terminal_tables.show(section, page)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Shows on stderr what takes more than a second; what it gives is told how far that is."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda far: None
        return
    from threading import Timer

    from rich.console import Console
    from rich.text import Text

    shown = Console(stderr=True).status(Text(visible(what)))
    soon = Timer(_SOON_S, shown.start)
    soon.start()
    try:
        yield lambda far: shown.update(Text(visible(f"{what}: {far}")))
    finally:
        soon.cancel()
        soon.join()
        shown.stop()


class _Uncommanding:
    """A log of GitHub's: it obeys lines with `::` in front and what follows `##[`, so not these."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(_COMMAND.sub(_written_out, text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _written_out(found: re.Match[str]) -> str:
    return f"{found[1] or ''}\\x{ord(found[0][-1]):02x}"


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    plain = found.translate(_PLAIN)
    return plain.encode("ascii", "backslashreplace").decode(), error.end
