"""Writing a run as native protobuf: everything becomes columns of slices and counter readings.

Times are Unix ns. The few packets that describe tracks and texts are made by the official protobufs
(`header`); the events, millions of them, are laid down column by column (`wire`) in time order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rltrace.report.perfetto import counters, samples, updates
from rltrace.report.perfetto import slices as slices_of
from rltrace.report.perfetto.events import in_time_order
from rltrace.report.perfetto.findings import Findings
from rltrace.report.perfetto.header import header
from rltrace.report.perfetto.links import linked
from rltrace.report.perfetto.profiles import merged
from rltrace.report.perfetto.scene import Points, Scene, Slices
from rltrace.report.perfetto.torch_profile import Profile
from rltrace.report.perfetto.tracks import OPEN
from rltrace.report.whole_file import whole_file
from rltrace.trace.run import Run


@dataclass(frozen=True)
class TimelineCounts:
    """What a timeline holds. `spans` counts steps and the phases of weight updates too; `syncs` are
    the participants' parts, `versions` the policy versions on their way, `path_stretches` those of
    the critical path, `profiled` the events of torch.profiler; `samples` are the readings of
    counters that were recorded, `derived` those that follow from the trajectories; `unended` slices
    of any kind have no end."""

    processes: int
    tracks: int
    spans: int
    trajectories: int
    rewards: int
    syncs: int
    uses: int
    versions: int
    path_stretches: int
    profiled: int
    arrows: int
    samples: int
    derived: int
    unended: int
    bytes: int  # size of the file

    @property
    def slices(self) -> int:
        """Everything but the counter readings and the arrows."""
        of_run = self.spans + self.trajectories + self.rewards + self.syncs + self.uses
        return of_run + self.versions + self.path_stretches + self.profiled


def write(
    run: Run, path: Path, findings: Findings | None = None, profiles: Sequence[Profile] = ()
) -> TimelineCounts:
    """Writes the timeline of a run to `path`, gzipped where the name ends in `.gz`; `findings` put
    the verdict on the steps and the critical path beside them, `profiles` are shown in the
    processes that they are of.

    Errors: `RltraceError` where nothing can be written there, or a profile is of another time; an
    existing file is then left as is.
    """
    scene = Scene()
    _add_processes(scene, run)
    # All tables are loaded by now: only then are all names known.
    texts: dict[int, str] = dict(run.connection.sql("SELECT id, text FROM names").fetchall())
    steps = slices_of.steps(scene, run, findings)
    critical = slices_of.path(scene, findings)
    spans = slices_of.spans(scene, run, texts)
    phases = slices_of.phases(scene, run, texts)
    generated = samples.trajectories(scene, run)
    judged = samples.rewards(scene, run, texts)
    used = samples.uses(scene, run)
    parts = updates.parts(scene, run)
    made_of = run.ask_columns(updates.MADE_OF)
    versions = updates.versions(scene, parts, made_of)
    # In the order of causes: at one instant what stands first is written first.
    followed, arrows = linked(generated, judged, used, versions, parts)
    readings = counters.readings(scene, run, texts)
    derived = counters.derived(scene, run)
    profiled, more_arrows = merged(scene, run, profiles, arrows)
    everything = [steps, critical, spans, *followed, phases, *profiled]
    size = _write(scene, path, everything, _joined(readings, derived))
    return TimelineCounts(
        processes=len(scene.processes),
        tracks=len(scene.tracks) - len(scene.processes),
        spans=len(steps) + len(spans) + len(phases),
        trajectories=len(generated.slices),
        rewards=len(judged.slices),
        syncs=len(parts.slices),
        uses=len(used.slices),
        versions=len(versions.slices),
        path_stretches=len(critical),
        arrows=arrows + more_arrows,
        profiled=sum(len(s) for s in profiled),
        samples=len(readings.time),
        derived=len(derived.time),
        unended=sum(int((s.end == OPEN).sum()) for s in everything),
        bytes=size,
    )


def _write(scene: Scene, path: Path, slices: Sequence[Slices], points: Points) -> int:
    slices = [s for s in slices if len(s)]
    starts = [int(x.min()) for x in (*(s.start for s in slices), points.time) if len(x)]
    with whole_file(path, "the timeline") as file:
        written = file.write(header(scene, min(starts, default=0)))
        for events in in_time_order(slices, points):
            written += file.write(events.data)
    return path.stat().st_size if path.is_file() else written


def _add_processes(scene: Scene, run: Run) -> None:
    query = """SELECT process, host, pid, coalesce(role, 'child of ' || child_of), rank
        FROM processes ORDER BY process"""
    for process, host, pid, role, rank in run.ask(query):
        title = " ".join(str(x) for x in (role or "process", rank) if x not in (None, -1))
        scene.process(process, f"{title} ({host}:{pid})", (f"host {host}", f"pid {pid}"))


def _joined(one: Points, other: Points) -> Points:
    return Points(
        *(
            np.concatenate([getattr(one, column), getattr(other, column)])
            for column in ("track", "time", "value")
        )
    )
