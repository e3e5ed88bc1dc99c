"""How processes of a run ended, as far as those that started them, or they themselves, said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.trace.own_files import own_files, own_lines
from rltrace.trace.processes import Process
from rltrace.trace.run_dir import ENDS
from rltrace.trace.texts import parsed


@dataclass(frozen=True)
class End:
    """How a process ended: by `signal` (0: by itself), which its parent sent where it was
    `asked`."""

    signal: int
    asked: bool


def read_ends(run: Path, processes: Iterable[Process]) -> dict[int, End]:
    """The ends that are known, by the number of the process. What cannot be read is skipped: an
    end that nobody knows is what most processes have."""
    under_pid: dict[tuple[str, str, int], list[tuple[int, Process]]] = {}
    speakers = {}
    for process in processes:
        started = process.facts.get("start_ns")
        place = (process.node, process.host, process.pid)
        if isinstance(started, int):
            under_pid.setdefault(place, []).append((started, process))
        speakers[process.who] = process
    found: dict[int, End] = {}
    for path in own_files(run / ENDS, ".jsonl")[0]:
        speaker = speakers.get(path.stem)
        if speaker is None:
            continue
        for line in own_lines(path):
            try:
                told: dict[str, Any] = {**parsed(line)}
                pid, number, at_ns = (int(told[key]) for key in ("pid", "signal", "monotonic_ns"))
                asked = told["asked"] is True
            except (ValueError, KeyError, TypeError, OverflowError):
                continue
            # A pid is used again: the last that began under it before this was said.
            known = under_pid.get((speaker.node, speaker.host, pid), ())
            before = [(started, one.number) for started, one in known if started <= at_ns]
            if before:
                _, number_of = max(before)
                earlier = found.get(number_of)
                found[number_of] = End(number, asked or (earlier is not None and earlier.asked))
    return found
