"""What scripts that look at a machine share: parts that fail alone, children that end, a table.

A machine with a GPU is lent for minutes. So a part that fails costs a line and leaves its traceback
in the JSON, a child has a deadline, and nothing is drawn but plain lines, last.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OK, MISSED, FAILED, SKIPPED = "ok", "MISSED", "FAILED", "skipped"
TIMED_OUT = 124
_LONGEST = 110  # characters of what is said in the table


@dataclass(frozen=True)
class Row:
    """A line of the table: what was looked at, how it is, and what was found."""

    what: str
    how: str
    found: str


@dataclass
class Findings:
    """What was found so far; `limit_s` is what all of it may take."""

    title: str
    limit_s: float
    rows: list[Row] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds until all of it is to be over."""
        return self.limit_s - (time.monotonic() - self.began_s)

    def check(self, what: str, holds: bool, found: str) -> None:
        """Something that is to be so."""
        self.rows.append(Row(what, OK if holds else MISSED, found))

    def skip(self, what: str, why: str) -> None:
        """Something that cannot be looked at here."""
        self.rows.append(Row(what, SKIPPED, why))

    @contextmanager
    def part(self, what: str) -> Iterator[None]:
        """What goes wrong inside is a line, and the other parts go on."""
        try:
            yield
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            self.rows.append(Row(what, FAILED, f"{type(error).__name__}: {lines[-1]}"))
            self.errors[what] = traceback.format_exc()

    def finish(self, json_file: Path | None) -> int:
        """Writes the JSON and prints the table; the exit code: 1 where something is not so."""
        took_s = time.monotonic() - self.began_s
        if json_file is not None:
            told = {
                "title": self.title,
                "took_s": took_s,
                "rows": [asdict(row) for row in self.rows],
                "figures": self.figures,
                "errors": self.errors,
            }
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text(json.dumps(told, indent=1, default=str) + "\n")
        for what, error in self.errors.items():
            print(f"--- {what}\n{error}")
        cells = [(row.what, row.how, row.found[:_LONGEST]) for row in self.rows]
        print_table(("what", "", "found"), cells)
        bad = [row for row in self.rows if row.how in (MISSED, FAILED)]
        print(f"{self.title}: {len(bad)} of {len(self.rows)} not as they should be, {took_s:.0f} s")
        return 1 if bad else 0


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as what is in them."""
    lines = [heads, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


class ChildFailed(Exception):
    """A child did not do what it was started for; says how it ended, and its last words."""


@dataclass(frozen=True)
class Child:
    """How a child ended (`TIMED_OUT`: it was ended), what it said, and how long it took."""

    code: int
    out: str
    err: str
    took_s: float

    def checked(self) -> Child:
        """Errors: `ChildFailed` unless it ended well."""
        if self.code:
            how = "took too long" if self.code == TIMED_OUT else f"exit code {self.code}"
            last = "\n".join([*self.out.splitlines()[-5:], *self.err.splitlines()[-40:]])
            raise ChildFailed(f"{last}\n{how}: {_last_error(self.err)}")
        return self


def run_child(
    command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None
) -> Child:
    """Runs a command in the checkout, with these variables besides ours. What it starts and leaves
    behind holds no pipe that somebody would wait for."""
    began_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(
            list(command),
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code = child.wait(max(limit_s, 1.0))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            code = TIMED_OUT
        for file in (out, err):
            file.seek(0)
        return Child(code, out.read(), err.read(), time.monotonic() - began_s)


def python(module: str, *arguments: object) -> list[str]:
    """The command of a module of the checkout, in this Python."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def wrapped(run: Path, command: Sequence[str]) -> list[str]:
    """The command of a job under `rltrace wrap`, recorded into a new run."""
    return [*python("rltrace", "wrap", "--out", run), "--", *command]


def _last_error(err: str) -> str:
    """The line of stderr that says most: the last one of a traceback, else the last."""
    lines = [line for line in err.splitlines() if line.strip()]
    said = [line for line in lines if "Error" in line.split(":")[0]]
    return (said or lines or ["it said nothing"])[-1]
