"""Weight updates of a run that is being followed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from rltrace.analysis.codes import named
from rltrace.analysis.meters.distribution import SYNC_S, Distribution
from rltrace.trace.follow import Rows
from rltrace.trace.vocabulary import SyncRole

_VERSIONS = {
    "spans": ("version",),
    "trajectories": ("first_version", "last_version"),
    "uses": ("version",),
    "syncs": ("version",),
}


class WeightMeter:
    """By a participant's part (source, relay, sink): how long its part in one update took, and the
    bytes. `version` is the newest policy version that any process named, None before the first."""

    def __init__(self) -> None:
        self.seconds: dict[str, Distribution] = {}
        self.bytes: Counter[str] = Counter()
        self.version: int | None = None

    def add(self, complete: Mapping[str, Rows], opened: Mapping[str, Rows]) -> None:
        """Takes in rows by table: those that became complete, and those in progress."""
        syncs = complete["syncs"]
        for role in np.unique(syncs["role"]):
            rows = syncs.where(syncs["role"] == role)
            part = named(SyncRole, int(role))
            length_s = np.maximum(rows["end_ns"] - rows["start_ns"], 0) / 1e9
            self.seconds.setdefault(part, Distribution(SYNC_S)).add(length_s)
            moved = rows["bytes"][rows["bytes"] >= 0]
            if len(moved):
                self.bytes[part] += int(moved.sum())
        newest = max((*_versions(complete), *_versions(opened)), default=-1)
        if newest >= 0:
            self.version = max(newest, self.version or 0)


def _versions(rows: Mapping[str, Rows]) -> Iterable[int]:
    for table, columns in _VERSIONS.items():
        for column in columns:
            if table in rows and len(rows[table]):
                yield int(rows[table][column].max())
