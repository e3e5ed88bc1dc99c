"""Processes that stopped recording (a full disk) while their run is followed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.trace.followed_lines import FollowedLines
from rltrace.trace.run_dir import PROBLEMS, RECORDING_STOPPED
from rltrace.trace.stated import problem_of
from rltrace.trace.texts import parsed


@dataclass(frozen=True)
class Stop:
    """When a process stopped recording, on the clock of its node and in real time (ns; None: it
    does not say), and why."""

    monotonic_ns: int | None
    real_ns: int | None
    detail: str


class FollowedStops:
    """Follows what processes say of it: `stops`, by who they are."""

    def __init__(self, path: Path) -> None:
        self.stops: dict[str, Stop] = {}
        self._lines = FollowedLines(path / PROBLEMS)

    def poll(self) -> None:
        """Looks what more was written down."""
        for who, line in self._lines.new():
            with suppress(ValueError, TypeError):  # `rltrace info` names it
                problem = problem_of(parsed(line))
                if problem["what"] == RECORDING_STOPPED:
                    self._note(who, problem)

    def note_facts(self, who: str, facts: dict[str, Any]) -> None:
        """The file of a process says it where the disk had no room for a line."""
        told = facts.get(RECORDING_STOPPED)
        if told is not None:
            with suppress(ValueError, TypeError):
                self._note(who, problem_of({**told, "what": RECORDING_STOPPED}))

    def _note(self, who: str, problem: dict[str, Any]) -> None:
        at = problem.get("monotonic_ns"), problem.get("real_ns")
        self.stops.setdefault(who, Stop(*at, str(problem.get("detail") or "")))
