"""Jobs whose rows are counted outside of the trace, and what their runs are short or long of."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rltrace
from tests.hooks.conftest import WRAP, clean_environment
from tests.patience import until

JOB = str(Path(__file__).with_name("job.py"))


@dataclass
class CountedJob:
    """`job.py` under `rltrace wrap --out run`, of `workers` processes with `rows` rows each."""

    folder: Path
    rows: int = 1000
    workers: int = 3
    pause_s: float = 0.0
    out: str = "run"
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    hold_at: int = -1  # workers wait before this row for `go`

    @property
    def run(self) -> Path:
        """Where it records."""
        return self.folder / self.out

    @property
    def counters(self) -> Path:
        """The file of what is stored."""
        return self.folder / f"{self.rows}.counters"

    @property
    def result(self) -> str:
        """What an untroubled job prints last."""
        total = self.workers * sum(range(self.rows))
        return f"{total} {[0] * self.workers}"

    def start(self) -> subprocess.Popen[str]:
        """Starts it; its first line has been read: its workers are about to start."""
        self.counters.write_bytes(bytes(8 * self.workers))
        words = map(str, (self.counters, self.rows, self.workers, self.pause_s))
        wrap = [*WRAP, "--out", self.out, *self.options]
        started = subprocess.Popen(
            [*wrap, "--", sys.executable, JOB, *words],
            cwd=self.folder,
            env=clean_environment(HOLD_AT=str(self.hold_at), GO=str(self._go), **self.env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert started.stdout is not None
        assert started.stdout.readline().startswith("ready")
        return started

    @property
    def _go(self) -> Path:
        return self.folder / f"{self.rows}.go"

    def until_held(self) -> None:
        """Waits until all workers wait."""
        until(lambda: self.stored() == [self.hold_at] * self.workers)

    def agent(self) -> int:
        """The process of the node's agent, which may record itself after the workers do."""

        def agents() -> list[int]:
            processes = rltrace.open_run(self.run).processes
            return [each.pid for each in processes if each.role == "agent"]

        until(agents)
        (pid,) = agents()
        return pid

    def go(self) -> None:
        """Lets them go on."""
        self._go.touch()

    def stored(self) -> list[int]:
        """How many rows of each worker are stored by now."""
        return list(struct.unpack(f"{self.workers}q", self.counters.read_bytes()))

    def pids(self) -> dict[int, int]:
        """The process of each worker, once all of them wait."""
        self.until_held()
        workers = "SELECT DISTINCT version, pid FROM spans"
        return dict(rltrace.open_run(self.run).sql(workers).fetchall())

    def wrong(self, run: Path | None = None) -> dict[str, Any]:
        """Rows that are missing, or that nobody recorded: of spans and of readings, by table.
        Empty: none. The row that a killed worker was in the middle of may be there."""
        opened = rltrace.open_run(run or self.run)
        stored = self.stored()
        found: dict[str, Any] = {}
        for table, query in (
            ("spans", "SELECT version, step FROM spans WHERE end_ns IS NOT NULL"),
            ("samples", "SELECT device, value FROM samples WHERE counter = 'row'"),
        ):
            rows = Counter((worker, int(row)) for worker, row in opened.sql(query).fetchall())
            due = {(worker, row) for worker, n in enumerate(stored) for row in range(n)}
            next_rows = {(worker, n) for worker, n in enumerate(stored)}
            lost = due - rows.keys()
            invented = rows.keys() - due - next_rows
            twice = [row for row, times in rows.items() if times > 1]
            if lost or invented or twice:
                found[table] = {"lost": len(lost), "invented": len(invented), "twice": len(twice)}
        return found


def fill(disk: Path, leave_bytes: int = 0) -> None:
    """Leaves so much room on a disk."""
    with (disk / "filling").open("wb", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(file.tell() - leave_bytes)


def said_by_us(errors: str) -> list[str]:
    """The lines of rltrace on stderr, but for the last, which says where the trace is."""
    return [line for line in errors.splitlines() if "the trace is in" not in line]
