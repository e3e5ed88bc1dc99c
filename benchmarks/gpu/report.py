"""What the parts of a benchmark find: times with their spread, beside what they are held to."""

from __future__ import annotations

import json
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """One measure: `seconds` of each repetition, of `bytes`; `floor_s` is what they would take by
    the machine's own limit, `goal` the least share of that. `value` and `holds` are of a row that
    is no time."""

    name: str
    seconds: list[float] = field(default_factory=list)
    bytes: int = 0
    floor_s: float = 0.0
    goal: float = 0.0
    value: str = ""
    holds: bool | None = None
    note: str = ""

    def words(self) -> tuple[str, ...]:
        """A line of the table."""
        if not self.seconds:
            return self.name, self.value, "", "", "", _sign(self.holds), self.note
        middle = statistics.median(self.seconds)
        share = self.floor_s / middle if self.floor_s else 0.0
        holds = share >= self.goal if self.goal else self.holds
        goal = f" of {self.goal:.0%}" if self.goal else ""
        return (
            self.name,
            f"{middle * 1e3:,.2f} ms",
            f"{min(self.seconds) * 1e3:,.2f} to {max(self.seconds) * 1e3:,.2f}",
            f"{self.bytes / middle / 1e9:,.1f} GB/s" if self.bytes else "",
            f"{share:.0%}{goal}" if self.floor_s else "",
            _sign(holds),
            self.note,
        )


class Report:
    """All rows, written down after each part, so that what a later one takes along is not lost."""

    def __init__(self, about: dict[str, Any], file: Path | None) -> None:
        self.about = about
        self.rows: list[Row] = []
        self.failed: dict[str, str] = {}
        self.took_s: dict[str, float] = {}
        self._file = file

    def add(self, name: str, **told: Any) -> Row:
        row = Row(name, **told)
        self.rows.append(row)
        return row

    def part(self, name: str, do: Callable[[], None]) -> None:
        """Does it; what goes wrong is a row, and the next part comes all the same."""
        print(f"... {name}", flush=True)
        began = time.perf_counter()
        try:
            do()
        except Exception as error:
            self.failed[name] = traceback.format_exc()
            why = str(error).strip().splitlines()[-1:] or [""]
            self.add(f"{name}: failed", note=f"{type(error).__name__}: {why[0]:.90}", holds=False)
        self.took_s[name] = time.perf_counter() - began
        self.write()

    def write(self) -> None:
        if self._file is not None:
            told = {
                "about": self.about,
                "rows": [asdict(row) for row in self.rows],
                "failed": self.failed,
                "part_s": self.took_s,
            }
            self._file.write_text(json.dumps(told, indent=1), "utf-8")

    def table(self) -> str:
        heads = ("", "median", "from to", "rate", "of floor", "", "")
        lines = [heads, *(row.words() for row in self.rows)]
        wide = [max(len(line[place]) for line in lines) for place in range(len(heads))]
        return "\n".join(
            "  ".join(word.ljust(size) for word, size in zip(line, wide, strict=True)).rstrip()
            for line in lines
        )


def timed(do: Callable[[], float | None], times: int, warm: int = 2) -> list[float]:
    """Seconds of each repetition after `warm` ones: what `do` returns, or else what it took."""
    found: list[float] = []
    for _ in range(warm + times):
        began = time.perf_counter()
        said = do()
        found.append(time.perf_counter() - began if said is None else said)
    return found[warm:]


def median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds)


def _sign(holds: bool | None) -> str:
    return "" if holds is None else "yes" if holds else "NO"
