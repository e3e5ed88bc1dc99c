"""What commands share: their run, the form of their answer, and the paths that they make."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache, partial, wraps
from pathlib import Path
from select import select
from stat import S_ISFIFO, S_ISREG
from typing import TYPE_CHECKING, Any

import click

import rltrace
from rltrace.cli.manual import offered_frameworks, offered_runs
from rltrace.cli.output import show, working
from rltrace.trace.errors import UNREADABLE, RltraceError, WrongUsage
from rltrace.trace.run_dir import holds_run
from rltrace.trace.safe_text import visible

if TYPE_CHECKING:
    from rltrace.analysis.timeline.analysed_part import StepSelection
    from rltrace.report.layout import Section
    from rltrace.trace.read.run import OpenedRun

_UNITS_S = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, None: 1.0}
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Given(click.Path):
    """A path that is not empty: `"$UNSET"` is neither the newest run nor the working directory."""

    def __init__(self, empty: str, is_run: bool = False) -> None:
        super().__init__(path_type=Path)
        self._empty, self._is_run = empty, is_run

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The path. Errors: `RltraceError` where it is empty, or the URL of no run."""
        if value == "":
            raise WrongUsage(self._empty)
        if self._is_run and isinstance(value, str):
            return run_path(value)
        return super().convert(value, param, ctx)


NEW_FOLDER = Given("--out is empty: name the run directory to make")
RUN_FOLDER = Given("the name of the run is empty: give it or leave it out", is_run=True)


def run_path(given: str) -> Path:
    """The folder of a run by path, name or URL (what is new is fetched). Errors: `RltraceError`."""
    if "://" not in given:
        from rltrace.run.run_folders import named_run

        return named_run(given)
    from rltrace.trace.transfer.remote_runs import fetch
    from rltrace.trace.transfer.store import is_url

    if not is_url(given):
        return Path(given)
    with working(f"fetching {given}") as tell:
        return fetch(given, lambda done, of: tell(f"{done / 1e6:,.1f} of {of / 1e6:,.1f} MB"))


def seconds(text: str, what: str, least: float = 0.0) -> float:
    """`8s`, `250ms`, `2min` -> seconds. Errors: `RltraceError` for what is no time."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(ms|s|min|m|h)?", text.strip())
    if found and least <= (time_s := float(found[1]) * _UNITS_S[found[2]]) < 1e9:
        return time_s
    raise WrongUsage(f"{what} must be a time such as 8s, 250ms or 2h, not {text!r}")


_OF_LAST = "Of the last N complete steps only, and what came after them."
_OF_PHASE = "Of the Nth of several trainings in one run only.  [default: the last]"
_MAP = "Of a trace of anything: a TOML file with the stage of each name."
_JOB = "Of a log that several jobs wrote: the Nth of them, instead of the last."
_PLACED = "The job's, where its log does not tell: colocated, disaggregated, one-step-off or async."
_PART = (
    click.option("--steps", metavar="A..B", help="Of these steps only: 7, 5..9, 5.., ..9."),
    click.option("--last", type=click.IntRange(min=1), metavar="N", help=_OF_LAST),
    click.option("--phase", type=click.IntRange(min=1), metavar="N", help=_OF_PHASE),
)
_OF_LOG = (
    click.option("--map", "mapping", type=click.Path(path_type=Path), metavar="FILE", help=_MAP),
    click.option("--job", type=click.IntRange(min=1), metavar="N", help=_JOB),
    click.option("--placement", default="", help=_PLACED),
)
PHASE = _PART[-1]
FULL = click.option("--full", is_flag=True, help="All that is known, in sections.")
RUN = click.argument("run", required=False, type=RUN_FOLDER, shell_complete=offered_runs)


def opens_a_run(function: Callable[..., None], is_readable: bool = False) -> Callable[..., None]:
    """Opens the run that a command names, or the newest; only a readable one where asked."""

    @wraps(function)
    def command(run: Path | None, **options: Any) -> None:
        from rltrace.run.run_folders import find_run, open_readable

        reuse_freed()
        opened = open_readable if is_readable else rltrace.open_run
        function(run=opened(find_run(run)), **options)

    return command


reads_a_run = partial(opens_a_run, is_readable=True)


def asks_of_a_part(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a command as `part` what is asked of a run: None, where nothing is but the run."""

    @wraps(function)
    def command(steps: str | None, last: int | None, phase: int | None, **options: Any) -> None:
        if steps is not None and last is not None:
            raise WrongUsage("give only one of --steps and --last")
        part: StepSelection | None = None
        if (steps, last, phase) != (None, None, None):
            from rltrace.analysis.timeline.analysed_part import StepSelection, asked_steps

            part = StepSelection(newest=last) if steps is None else asked_steps(steps)
            part = replace(part, phase=phase)
        function(part=part, **options)

    for option in _PART:
        command = option(command)
    return command


def reads_steps_of_a_run(function: Callable[..., None]) -> Callable[..., None]:
    @wraps(function)
    def command(run: OpenedRun, part: StepSelection | None, **options: Any) -> None:
        from rltrace.analysis.timeline.analysed_part import narrow

        narrow(run, part)
        function(run=run, **options)

    return reads_a_run(asks_of_a_part(command))


def explains_a_log(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a command what is asked of a log."""
    for option in _OF_LOG:
        function = option(function)
    return function


def reads_steps_of_a_run_or_log(function: Callable[..., None]) -> Callable[..., None]:
    """The same, and of a log a run that is made for the moment."""
    of_run = reads_steps_of_a_run(function)
    whose: dict[str, Any] = {"metavar": "FRAMEWORK", "shell_complete": offered_frameworks}

    @explains_a_log
    @click.option("--as", "framework", default="", **whose)
    @wraps(of_run)
    def command(run: Path | None, **options: Any) -> None:
        told = {name: options.pop(name) for name in ("framework", "mapping", "job", "placement")}
        asked = any(told.values())
        if asked and run is None:
            raise WrongUsage("--as, --map, --job and --placement are for a log: name it")
        may_be = run is not None and (str(run) == "-" or (run.exists() and not holds_run(str(run))))
        if run is None and _is_fed():
            say("stdin is not read: `rltrace report -` makes a report of what comes in", err=True)
        if run is None or not (asked or may_be):
            of_run(run=run, **options)
            return
        from rltrace.run.importing import found_in, is_log, run_of_log

        if not (asked or is_log(run)):
            of_run(run=run, **options)
            return
        with ExitStack() as stack:
            with working("reading stdin" if str(run) == "-" else f"reading {run.name}"):
                path, done = stack.enter_context(run_of_log(run, **told))
            say(found_in(done), err=True)
            for note in done.says:
                say(note, err=True)
            of_run(run=path, **options)

    return command


def _is_fed() -> bool:
    """Whether something comes in."""
    with suppress(OSError, ValueError, AttributeError):  # it is closed, or cannot be asked
        given, kind = sys.stdin.fileno(), os.fstat(sys.stdin.fileno()).st_mode
        return S_ISREG(kind) or (S_ISFIFO(kind) and select([given], [], [], 0)[0] != [])
    return False


def beside_rows(run: OpenedRun, name: str) -> Path:
    """A file in the run, where no place was told. Errors: `RltraceError` where a link stands there,
    which somebody else may have made."""
    from rltrace.trace.untrusted_files import is_elsewhere

    path = run.path / name
    if is_elsewhere(path):
        said = f"{path} is a link to another place: choose the place to write to with -o"
        raise RltraceError(said, UNREADABLE)
    return path


def one_form(asked: dict[str, bool]) -> None:
    """Errors: `RltraceError` where an answer is asked for in two forms."""
    forms = [option for option, given in asked.items() if given]
    if len(forms) > 1:
        raise WrongUsage(f"give only one of {' and '.join(forms)}")


def say(text: str, err: bool = False) -> None:
    """Prints a sentence for people, with what a terminal would obey written out."""
    click.echo(visible(text), err=err)


def answer(as_json: bool, document: object, shown: str | Iterable[Section]) -> None:
    """Prints an answer as JSON, or for people: a sentence or sections."""
    if as_json:
        print_json(document)
    elif isinstance(shown, str):
        say(shown)
    else:
        show(shown)


def print_json(value: object) -> None:
    """JSON, with what it does not know as text, and what no terminal shows as JSON's escapes."""
    if isinstance(value, dict) and "schema" not in value:
        from rltrace.report.formats.to_json import document_of

        command = click.get_current_context().command_path.split()[1:]
        value = document_of("-".join(command), value)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    only_ascii = not encoding.lower().startswith("utf")
    written = json.dumps(value, indent=2, ensure_ascii=only_ascii, default=str)
    click.echo("\n".join(map(_harmless, written.split("\n"))))


def _harmless(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's <malloc.h>
_KEPT_BYTES = 256 << 20  # free at the end of the heap before any of it is given back
_APART_BYTES = 64 << 20  # blocks from this size on are given back at once


@cache
def reuse_freed() -> None:
    """Has glibc keep what this process frees for the next block, unless the user told it otherwise.

    By itself it gives large blocks back at once, and the kernel fills the pages of the next with
    zeros: on a run of 100 million rows that is every seventh second of a report. Only commands do
    so, never a process in which rltrace is a guest.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library: macOS, musl, Windows
        return
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _APART_BYTES)
