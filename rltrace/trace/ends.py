"""How processes of a run ended, as far as those that started them, or they themselves, said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.trace.own_files import own_files, own_lines
from rltrace.trace.processes import Process
from rltrace.trace.run_dir import ENDS
from rltrace.trace.texts import parsed

REASONS = ("memory", "node", "process")


@dataclass(frozen=True)
class End:
    """How a process ended: with exit `code`, by `signal` (0: by itself, or nobody knows), which its
    parent sent where it was `asked` (not where it had died of another). `why` is what Ray said of
    an actor whose end nobody of the job wanted: "memory" (Ray ended it as memory ran out), "node"
    (its node died) or "process" (it died itself)."""

    signal: int
    asked: bool
    why: str = ""
    code: int = 0


def read_ends(run: Path, processes: Iterable[Process]) -> dict[int, End]:
    """The ends that are known, by the number of the process. What cannot be read is skipped: an
    end that nobody knows is what most processes have."""
    known = _Known(processes)
    signals: dict[int, tuple[list[int], list[int]]] = {}  # that it was sent, and that it died of
    why: dict[int, str] = {}
    codes: dict[int, int] = {}
    for path in own_files(run / ENDS, ".jsonl")[0]:
        speaker = known.speakers.get(path.stem)
        if speaker is None:
            continue
        for line in own_lines(path):
            try:
                told: dict[str, Any] = {**parsed(line)}
                number_of = known.meant(speaker, told)
                number, asked = int(told["signal"]), told["asked"] is True
            except (ValueError, KeyError, TypeError, OverflowError):
                continue
            if number_of is None:
                continue
            signals.setdefault(number_of, ([], []))[not asked].append(number)
            if isinstance(code := told.get("code"), int):
                codes[number_of] = code
            if told.get("why") in REASONS:
                why[number_of] = str(told["why"])
    found = {}
    for number_of, (sent, died_of) in signals.items():
        seen = [number for number in died_of if number]
        asked = bool(sent) and (not seen or seen[-1] in sent)
        signal = [0, *filter(None, sent), *seen][-1]
        found[number_of] = End(signal, asked, why.get(number_of, ""), codes.get(number_of, 0))
    return found


class _Known:
    """The processes of a run, as others speak of them; `speakers` are those by their own name."""

    def __init__(self, processes: Iterable[Process]) -> None:
        self.speakers: dict[str, Process] = {}
        self._under_pid: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
        self._actors: dict[str, list[tuple[int, Process]]] = {}
        for process in processes:
            self.speakers[process.who] = process
            started = process.facts.get("start_ns")
            if not isinstance(started, int):
                continue
            place = (process.node, process.host, process.pid)
            self._under_pid.setdefault(place, []).append((started, process.number))
            actor = process.facts.get("actor_id")
            if isinstance(actor, str) and actor:
                self._actors.setdefault(actor, []).append((process.start_ns, process))

    def meant(self, speaker: Process, told: Mapping[str, Any]) -> int | None:
        """Whom a line is about: pids are used again, and Ray starts an actor again under its id, so
        it is the last that began before this was said. Errors: ValueError, KeyError, TypeError."""
        if "actor" not in told:
            pid, at_ns = int(told["pid"]), int(told["monotonic_ns"])
            place = (speaker.node, speaker.host, pid)
            before = [one for one in self._under_pid.get(place, ()) if one[0] <= at_ns]
            return max(before)[1] if before else None
        real_ns, of_pid = int(told["real_ns"]), told.get("pid")
        ran = [
            (began_ns, process.number)
            for began_ns, process in self._actors.get(told["actor"], ())
            if of_pid in (None, process.pid) and began_ns <= real_ns
        ]
        return max(ran)[1] if ran else None
