"""A trace that torch.profiler (Kineto) wrote, as columns and as slices of a timeline.

Such a file is Chrome's JSON, gzipped or not. `ts` and `dur` are microseconds with three decimals;
`ts` counts from `baseTimeNanoseconds` (Unix ns) where the file states it, else from the Unix epoch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.report.perfetto.links import with_arrows
from rltrace.report.perfetto.scene import Ints, Note, Scene, Slices, nest
from rltrace.report.perfetto.slices import PROFILES
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.read.clock_alignment import read_clock_files
from rltrace.trace.read.processes import TracedProcess
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.run_dir import CLOCKS
from rltrace.trace.untrusted_files import parsed, read_given, unpacked

MOST_NOTES = 24  # arguments that are shown: those which the most events have
_LARGEST = 1 << 63
_MOST_NS = 1 << 62
_MOST_RANKS = 1 << 31
_CPU, _EVENTS = "CPU", "traceEvents"
_HOUR_NS = 3600 * 1_000_000_000


@dataclass(frozen=True)
class Argument:
    """One argument of the events; `known` says of which. Texts are `words`, numbers `values`."""

    title: str
    values: NDArray[Any]
    words: list[str] | None
    known: NDArray[np.bool_]


@dataclass(frozen=True)
class Profile:
    """The events of one process that took time, a place each. `thread` is a place in `threads`;
    `pid` and `rank` are -1 and `host` empty where the file does not say. `arrows` are pairs of
    places: what led to what (a launch to its kernel, forward to backward)."""

    path: Path
    host: str
    pid: int
    rank: int
    threads: list[str]
    thread: Ints
    start_ns: Ints
    end_ns: Ints
    name: list[str]
    category: list[str]
    arguments: tuple[Argument, ...]
    arrows: Ints

    def __len__(self) -> int:
        return len(self.start_ns)


def files_of(path: Path) -> list[Path]:
    """A trace, or all in a folder. Errors: `RltraceError` where there is none."""
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz")))
    if not found:
        raise RltraceError(f"no torch.profiler trace (*.json, *.json.gz) is in {path}")
    return found


def read(path: Path) -> Profile:
    """Reads one file. Errors: `RltraceError` where it cannot be read, or is none of torch's."""
    document = _document(path)
    threads: dict[tuple[object, object], int] = {}
    events = [e for e in document[_EVENTS] if isinstance(e, dict) and _is_placed(e)]
    timed = [e for e in events if e.get("ph") == "X" and isinstance(e.get("pid"), int)]
    try:
        base = int(document.get("baseTimeNanoseconds") or 0)
        if not 0 <= base < _MOST_NS:
            raise ValueError("no time")
        start = base + _ns([e["ts"] for e in timed])
        length = _ns([e.get("dur", 0) for e in timed])
        thread = [threads.setdefault((e["pid"], e.get("tid")), len(threads)) for e in timed]
        names = [str(e["name"]) for e in timed]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _foreign(path, "an event of it has no name or no time") from error
    if not timed:
        raise RltraceError(f"{path} holds no event: nothing ran while torch.profiler was on")
    places = np.array(thread, np.int64)
    end = start + np.maximum(length, 0)
    said = _descriptions(events)
    # The process whose calls were traced: devices have numbers among the processes, too.
    pids = (e["pid"] for e in timed)
    labels = {pid: text for (kind, pid, _), text in said.items() if kind == "process_labels"}
    distributed = document.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    return Profile(
        path=path,
        host=str(document.get("host_name") or ""),
        pid=next((pid for pid in pids if labels.get(pid, _CPU) == _CPU), -1),
        rank=rank if isinstance(rank, int) and 0 <= rank < _MOST_RANKS else -1,
        threads=[_thread_name(key, said) for key in threads],
        thread=places,
        start_ns=start,
        end_ns=end,
        name=names,
        category=[str(e.get("cat") or "torch") for e in timed],
        arguments=_arguments(timed),
        arrows=_arrows(events, threads, places, start, end, base),
    )


def _document(path: Path) -> dict[str, Any]:
    try:
        text = unpacked(read_given(path)).decode()  # beside its values the bytes are a third
    except OSError as error:
        raise RltraceError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise _foreign(path, str(error)) from error
    try:
        document = parsed(text, object_hook=_once_each)
    except ValueError as error:
        raise _foreign(path, "it is no JSON, or breaks off") from error
    if not isinstance(document, dict) or not isinstance(document.get(_EVENTS), list):
        raise _foreign(path, f"it has no list `{_EVENTS}`")
    if "schemaVersion" not in document and "deviceProperties" not in document:
        raise _foreign(path, "another program wrote it: `schemaVersion` is missing")
    return document


def _once_each(table: dict[str, Any]) -> dict[str, Any]:
    """With each text once in memory, and lists of an event's arguments (shapes, strides) as their
    text: a million events have the same few hundred."""
    for key, value in table.items():
        if isinstance(value, str):
            table[key] = sys.intern(value)
        elif isinstance(value, list) and key != _EVENTS:
            table[key] = sys.intern(json.dumps(value, ensure_ascii=False))
    return table


def _foreign(path: Path, why: str) -> RltraceError:
    return RltraceError(f"{path} is no trace of torch.profiler: {why}")


def _ns(microseconds: list[Any]) -> Ints:
    with np.errstate(over="ignore"):
        ns = np.rint(np.array(microseconds, np.float64) * 1000)
    if ns.ndim != 1 or not (np.abs(ns) < _MOST_NS).all():  # lists of times, and NaN, too
        raise ValueError("no time")
    return ns.astype(np.int64)


def _is_placed(event: dict[str, Any]) -> bool:
    kinds = str | int | float | None
    return all(isinstance(event.get(name), kinds) for name in ("pid", "tid", "cat", "id"))


def _descriptions(events: list[dict[str, Any]]) -> dict[tuple[str, object, object], str]:
    """What `M` events say: by kind, process and thread."""
    said: dict[tuple[str, object, object], str] = {}
    for event in events:
        arguments = event.get("args")
        if event.get("ph") == "M" and isinstance(arguments, dict):
            text = arguments.get("name", arguments.get("labels"))
            thread = event.get("tid") if event.get("name") == "thread_name" else None
            said[str(event.get("name")), event.get("pid"), thread] = str(text)
    return said


def _thread_name(key: tuple[object, object], said: dict[tuple[str, object, object], str]) -> str:
    pid, tid = key
    name = said.get(("thread_name", pid, tid), f"thread {tid}").strip()
    label = said.get(("process_labels", pid, None), _CPU)
    return name if label == _CPU else f"{label} {name}"


def _arguments(timed: list[dict[str, Any]]) -> tuple[Argument, ...]:
    places: dict[str, list[int]] = {}
    for place, event in enumerate(timed):
        arguments = event.get("args")
        for title in arguments if isinstance(arguments, dict) else ():
            places.setdefault(title, []).append(place)
    most = sorted(places, key=lambda title: -len(places[title]))[:MOST_NOTES]
    return tuple(_argument(title, timed, places[title]) for title in most)


def _argument(title: str, timed: list[dict[str, Any]], places: list[int]) -> Argument:
    given = [timed[place]["args"][title] for place in places]
    known = np.zeros(len(timed), np.bool_)
    known[places] = True
    kinds, words = {type(value) for value in given}, None
    if not kinds <= {int, float} or not all(
        -_LARGEST <= v < _LARGEST for v in given if type(v) is int
    ):
        texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in given]
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        given, words = [numbers[text] for text in texts], list(numbers)
    values = np.zeros(len(timed), np.float64 if words is None and float in kinds else np.int64)
    values[places] = given
    return Argument(title, values, words, known)


def _arrows(
    events: list[dict[str, Any]],
    threads: dict[tuple[object, object], int],
    thread: Ints,
    start: Ints,
    end: Ints,
    base: int,
) -> Ints:
    """Pairs of events that flow events join. Shape (arrows, 2)."""
    order = np.lexsort((-end, start, thread))
    first = np.searchsorted(thread[order], np.arange(len(threads) + 1))

    latest_end = end[order]
    for begin, until in pairwise(first):
        latest_end[begin:until] = np.maximum.accumulate(latest_end[begin:until])

    def event_at(flow: dict[str, Any]) -> int:
        """The innermost event of its thread that lasts at a flow's time; -1: there is none."""
        lane = threads.get((flow.get("pid"), flow.get("tid")), -1)
        if lane < 0:
            return -1
        moment = base + int(_ns([flow["ts"]])[0])
        mine = order[first[lane] : first[lane + 1]]
        at = int(np.searchsorted(start[mine], moment, side="right")) - 1
        latest = latest_end[first[lane] : first[lane + 1]]
        while at >= 0 and end[mine[at]] < moment <= latest[at]:
            at -= 1
        return int(mine[at]) if at >= 0 and end[mine[at]] >= moment else -1

    def is_time(value: object) -> bool:
        return isinstance(value, int | float) and abs(value) < _MOST_NS / 1000  # not NaN, either

    begun: dict[tuple[object, object], int] = {}
    pairs = []
    flows = [e for e in events if e.get("ph") in ("s", "f") and is_time(e.get("ts"))]
    for flow in sorted(flows, key=lambda e: (e["ph"] == "f", e["ts"])):
        key = (flow.get("cat"), flow.get("id"))
        if flow["ph"] == "s":
            begun[key] = event_at(flow)
        elif begun.get(key, -1) >= 0 and (target := event_at(flow)) >= 0:
            pairs.append((begun[key], target))
    return np.array(pairs, np.int64).reshape(-1, 2)


def merged(
    scene: Scene, run: OpenedRun, profiles: Sequence[Profile], first_arrow: int
) -> tuple[list[Slices], int]:
    """The events of all profiles, and the number of arrows among them, with ids after
    `first_arrow`. Errors: `RltraceError` for a profile of another time."""
    found, arrows = [], 0
    for profile in profiles:
        process = _process_of(run, profile)
        slices = _slices(scene, profile, process, _correction_ns(run, profile, process))
        _check_time(run, profile, slices)
        begins, ends = profile.arrows.T
        in_order = slices.start[begins] <= slices.start[ends]
        link = (0, begins[in_order], 0, ends[in_order])
        (linked,), made = with_arrows([slices], [link], first_arrow + arrows)
        found.append(linked)
        arrows += made
    return found, arrows


def _process_of(run: OpenedRun, profile: Profile) -> TracedProcess | None:
    """The process of the run that wrote a profile: the last of its pid that had begun by then."""
    last = int(profile.end_ns.max())
    same = (p for p in run.processes if p.pid == profile.pid and profile.host in ("", p.host))
    begun = (p for p in same if p.start_ns <= last + _HOUR_NS)
    return max(begun, key=lambda process: process.start_ns, default=None)


def _correction_ns(run: OpenedRun, profile: Profile, process: TracedProcess | None) -> int:
    """What to add to the real time of a node, by the pair of clocks read nearest to the profile."""
    clock = run.clock_of(process.node) if process is not None else None
    if process is None or clock is None:
        return 0
    pairs = list(read_clock_files(run.path / CLOCKS, every_pair=True)[0].get(process.node, ()))
    stated = process.facts.get("clock")
    if isinstance(stated, dict):
        pairs.append((stated["monotonic_ns"], stated["real_ns"], 0))
    if not pairs:
        return 0
    begin = int(profile.start_ns.min())
    monotonic_ns, real_ns, _ = min(pairs, key=lambda pair: abs(pair[1] - begin))
    return clock.moment(monotonic_ns) - real_ns


def _slices(
    scene: Scene, profile: Profile, process: TracedProcess | None, correction_ns: int
) -> Slices:
    if process is not None:
        owner = process.number
    else:
        rank = f" rank {profile.rank}" if profile.rank >= 0 else ""
        owner = -1 - len(scene.processes)
        scene.process(owner, f"torch.profiler{rank} ({profile.path.name})")
    extra = nest(profile.thread, profile.start_ns, profile.end_ns)

    def note(one: Argument) -> Note:
        if one.words is None:
            return scene.note(one.title, one.values, one.known)
        ids = np.array([scene.words.id(word) for word in one.words], np.int64)
        return Note(scene.titles.id(one.title), "word", ids[one.values], one.known)

    def track(thread: int, extra: int) -> int:
        beside = ", overlapping" if extra else ""
        return scene.row(owner, f"torch: {profile.threads[thread]}{beside}", PROFILES)

    return Slices(
        track=scene.each(track, profile.thread, extra),
        start=profile.start_ns + correction_ns,
        end=profile.end_ns + correction_ns,
        name=scene.names.all(profile.name),
        category=scene.categories.all(profile.category),
        notes=tuple(map(note, profile.arguments)),
    )


def _check_time(run: OpenedRun, profile: Profile, slices: Slices) -> None:
    begin = min((p.start_ns for p in run.processes if p.start_ns > 0), default=0)
    start, last, ended = int(slices.start.min()), int(slices.end.max()), run.meta.get("end_real_ns")
    end = ended if isinstance(ended, int) else last
    if last < begin or start > end:
        where = f"{(begin - start) / 1e9:,.0f} s before its start"
        if start > end:
            where = f"{(start - end) / 1e9:,.0f} s after its end"
        raise WrongUsage(f"{profile.path} was not recorded during this run: its times lie {where}")
