"""Traces of torch.profiler on the run's time line: in the process that each is of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rltrace.report.perfetto.links import with_arrows
from rltrace.report.perfetto.scene import Note, Scene, Slices
from rltrace.report.perfetto.slices import PROFILES
from rltrace.report.perfetto.torch_profile import Argument, Profile
from rltrace.report.perfetto.tracks import nest
from rltrace.trace.alignment import read_clock_files
from rltrace.trace.errors import WrongUsage
from rltrace.trace.processes import Process
from rltrace.trace.run import Run
from rltrace.trace.run_dir import CLOCKS

_HOUR_NS = 3600 * 1_000_000_000


def merged(
    scene: Scene, run: Run, profiles: Sequence[Profile], first_arrow: int
) -> tuple[list[Slices], int]:
    """The events of all profiles, and the number of arrows among them; their ids come after
    `first_arrow`. Errors: `RltraceError` for a profile that is not of the time of the run."""
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


def _process_of(run: Run, profile: Profile) -> Process | None:
    """The process of the run that wrote a profile: of its pid, on its host where that is known, and
    the last that had begun by then."""
    last = int(profile.end_ns.max())
    same = [
        process
        for process in run.processes
        if process.pid == profile.pid
        and profile.host in ("", process.host)
        and process.start_ns <= last + _HOUR_NS
    ]
    return max(same, key=lambda process: process.start_ns, default=None)


def _correction_ns(run: Run, profile: Profile, process: Process | None) -> int:
    """What to add to the real time of the process's node for the run's time: its clock may be
    seconds off. By the pair of both clocks that was read nearest to the profile."""
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


def _slices(scene: Scene, profile: Profile, process: Process | None, correction_ns: int) -> Slices:
    if process is not None:
        owner = process.number
    else:
        rank = f" rank {profile.rank}" if profile.rank >= 0 else ""
        owner = -1 - len(scene.processes)
        scene.process(owner, f"torch.profiler{rank} ({profile.path.name})", ())
    extra = nest(profile.thread, profile.start_ns, profile.end_ns)

    def track(thread: int, extra: int) -> int:
        crossing = ", crossing" if extra else ""
        return scene.row(owner, f"torch: {profile.threads[thread]}{crossing}", PROFILES)

    return Slices(
        track=scene.each(track, profile.thread, extra),
        start=profile.start_ns + correction_ns,
        end=profile.end_ns + correction_ns,
        name=scene.names.all(profile.name),
        category=scene.categories.all(profile.category),
        notes=tuple(_note(scene, argument) for argument in profile.arguments),
    )


def _note(scene: Scene, one: Argument) -> Note:
    if one.words is None:
        return scene.note(one.title, one.values, one.known)
    ids = np.array([scene.words.id(word) for word in one.words], np.int64)
    return Note(scene.titles.id(one.title), "word", ids[one.values], one.known)


def _check_time(run: Run, profile: Profile, slices: Slices) -> None:
    begin = min((p.start_ns for p in run.processes if p.start_ns > 0), default=0)
    start, last, ended = int(slices.start.min()), int(slices.end.max()), run.meta.get("end_real_ns")
    end = ended if isinstance(ended, int) else last
    if last < begin or start > end:
        where = f"{(begin - start) / 1e9:,.0f} s before its start"
        if start > end:
            where = f"{(start - end) / 1e9:,.0f} s after its end"
        raise WrongUsage(f"{profile.path} was not recorded during this run: its times lie {where}")
