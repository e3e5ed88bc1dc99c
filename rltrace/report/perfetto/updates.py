"""Weight updates as slices: every participant's part, and each policy version on its way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.report.perfetto.rows import Rows
from rltrace.report.perfetto.scene import Note, Scene, Slices
from rltrace.report.perfetto.slices import TITLES, UPDATES, VERSIONS
from rltrace.report.perfetto.tracks import OPEN, Ints, pack
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Fate, SyncRole, Transport


def parts(scene: Scene, run: Run) -> Slices:
    """The part of every participant, of the version that it brought."""
    rate = "CASE WHEN bytes >= 0 AND end_ns > start_ns THEN bytes / (end_ns - start_ns) END"
    columns = "process, start_ns, end_ns, version, role, stall_ns, bytes, wire_bytes, buckets"
    rows = Rows(scene, run, f"SELECT {columns}, transport, {rate} AS gb_per_s FROM raw_syncs")
    return rows.slices(
        track=rows.on_rows("weight updates", UPDATES),
        name=scene.names.column(rows["version"], lambda n: "weights" if n < 0 else f"weights v{n}"),
        category="weight update",
        notes=(
            *rows.integers("version", "stall_ns", "bytes", "wire_bytes", "buckets"),
            rows.double("gb_per_s"),
            rows.code("role", SyncRole),
            rows.code("transport", Transport),
        ),
        of=("version", "role"),
    )


def versions(scene: Scene, parts: Slices, place: Ints, facts: dict[str, NDArray[Any]]) -> Slices:
    """Each version on its way, from the first part in bringing it to the end of the last one.
    `place` is as of `places`, `facts` are columns of what is known of the samples that made a
    version, by their title, and `version`."""
    count = int(place.max(initial=-1)) + 1
    known = np.flatnonzero(place >= 0)
    place = place[known]
    start, end = np.full(count, OPEN), np.zeros(count, np.int64)
    np.minimum.at(start, place, parts.start[known])
    np.maximum.at(end, place, parts.end[known])
    version = np.zeros(count, np.int64)
    version[place] = parts.of["version"][known]
    rows = pack(start, end)
    return Slices(
        track=scene.each(lambda _row: scene.row(None, TITLES[VERSIONS], VERSIONS), rows),
        start=start,
        end=end,
        name=scene.names.column(version, lambda n: f"v{n} on its way"),
        category=np.full(count, scene.categories.id("policy version"), np.int64),
        notes=(
            scene.note("version", version),
            scene.note("participants", np.bincount(place, minlength=count)),
            *_made_of(scene, version, facts),
        ),
        of={"version": version},
    )


def places(parts: Slices) -> Ints:
    """For each part the number of its update, in the order of their first parts; -1 where its
    version is not known. A version is brought again where
    a source begins with it after all of its parts ended and another version came in between."""
    numbers = np.full(len(parts), -1, np.int64)
    current: dict[int, tuple[int, int, int]] = {}  # by version: its number, its end, sources so far
    sources, last, made = 0, -1, 0
    for i in np.argsort(parts.start, kind="stable").tolist():
        version, end = int(parts.of["version"][i]), int(parts.end[i])
        if version < 0:
            continue
        is_source = bool(parts.of["role"][i] == SyncRole.SOURCE)
        if is_source and version != last:
            sources, last = sources + 1, version
        known = current.get(version)
        again = (
            known is not None
            and is_source
            and int(parts.start[i]) > known[1]
            and sources > known[2]
        )
        if known is None or again:
            known, made = (made, end, sources), made + 1
        current[version] = (known[0], max(known[1], end), sources if is_source else known[2])
        numbers[i] = known[0]
    return numbers


def _made_of(scene: Scene, version: Ints, facts: dict[str, NDArray[Any]]) -> list[Note]:
    row_of = {int(v): row for row, v in enumerate(facts["version"])}
    rows = np.array([row_of.get(int(v), -1) for v in version], np.int64)
    notes = []
    for title, column in facts.items():
        if title == "version" or not len(column):
            continue
        known = (rows >= 0) & ~np.ma.getmaskarray(column)[rows]
        values = np.ma.getdata(column)[rows]
        notes.append(scene.note(title, values, known))
    return notes


MADE_OF = f"""
    SELECT u.version::bigint + 1 AS version, max(nullif(u.step, -1)) AS made_by_step,
           count(*) AS samples,
           max(u.version::bigint - t.first_version) AS largest_lag_versions,
           avg(u.version::bigint - t.first_version) AS mean_lag_versions
    FROM raw_uses u LEFT JOIN (
        SELECT trajectory, nullif(arg_min(first_version, start_ns), -1) AS first_version
        FROM raw_trajectories WHERE trajectory <> -1 GROUP BY trajectory) t USING (trajectory)
    WHERE u.version >= 0 AND u.fate = {Fate.TRAINED:d} GROUP BY 1
"""
"""By version, the samples that the update which made it was trained on."""
