"""What memory the control groups of this process, as those of a container, have left.

A node may have memory where its container has none: who takes more there has a process killed.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

_NEW = ("memory.max", "memory.current", "inactive_file")
_OLD = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""Of versions 2 and 1: the limit, what is used, and what of that are pages of files that nobody has
looked at for long, which are given back before anything is killed."""


def memory_room_bytes(
    mounted: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> float:
    """The least that any group that this process is in, or one above it, has left; infinite where
    none has a limit, or nobody tells."""
    least = math.inf
    with suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            top, files = (mounted / "memory", _OLD) if kinds else (mounted, _NEW)
            group = top / path.lstrip("/")
            # A container may see its own group at the top, and be told of a path that it lacks.
            for each in (group, *group.parents):
                least = min(least, _room(each, *files))
                if each == top:
                    break
    return least


def _room(group: Path, limit: str, used: str, given_back: str) -> float:
    try:
        room = int((group / limit).read_text()) - int((group / used).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return room + int(stat.get(given_back, 0))
    except (OSError, ValueError):  # no such group, or no limit: "max"
        return math.inf
