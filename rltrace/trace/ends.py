"""How processes of a run ended, as far as those that started them, or they themselves, said."""

from __future__ import annotations

from collections import defaultdict
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
    processes = list(processes)
    speakers, began = {process.who: process for process in processes}, _began(processes)
    signals: dict[int, tuple[list[int], list[int]]] = {}  # that it was sent, and that it died of
    why: dict[int, str] = {}
    codes: dict[int, int] = {}
    for path in own_files(run / ENDS, ".jsonl")[0]:
        speaker = speakers.get(path.stem)
        if speaker is None:
            continue
        for line in own_lines(path):
            try:
                told: dict[str, Any] = {**parsed(line)}
                number_of = _meant(began, speaker, told)
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


_Began = Mapping[tuple[Any, ...], list[tuple[int, int]]]
"""When processes began, and their numbers, by the ways to speak of them."""


def _began(processes: Iterable[Process]) -> _Began:
    found: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    for process in processes:
        started, actor = process.facts.get("start_ns"), str(process.facts.get("actor_id") or "")
        if isinstance(started, int):
            found[process.node, process.host, process.pid].append((started, process.number))
            for pid in (None, process.pid) if actor else ():
                found[actor, pid].append((process.start_ns, process.number))
    return found


def _meant(began: _Began, speaker: Process, told: Mapping[str, Any]) -> int | None:
    """Whom a line is about: pids are used again, and Ray starts an actor again under its id, so it
    is the last that began before this was said. Errors: ValueError, KeyError, TypeError."""
    key: tuple[Any, ...]
    if "actor" in told:
        key, until_ns = (told["actor"], told.get("pid")), int(told["real_ns"])
    else:
        key = (speaker.node, speaker.host, int(told["pid"]))
        until_ns = int(told["monotonic_ns"])
    return max((one for one in began.get(key, ()) if one[0] <= until_ns), default=(0, None))[1]
