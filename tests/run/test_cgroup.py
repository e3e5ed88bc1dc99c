"""What the groups of a process have left of memory, as the kernel's files tell it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rltrace.testing.inside.run import memory_room_bytes

NEW = ("memory.max", "memory.current", "inactive_file")
OLD = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def group(folder: Path, names: tuple[str, str, str], limit: object, used: int, old: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {used - old}\n{names[2]} {old}\n")


def room(tmp_path: Path, line: str) -> float:
    own = tmp_path / "own"
    own.write_text(f"5:cpu,cpuacct:/elsewhere\n{line}\n")
    return memory_room_bytes(tmp_path / "mounted", own)


@pytest.mark.parametrize(
    ("names", "top", "line"), [(NEW, "", "0::/job/worker"), (OLD, "memory", "4:memory:/job/worker")]
)
def test_the_tightest_group_above_a_process_says_what_is_left(
    tmp_path: Path, names: tuple[str, str, str], top: str, line: str
) -> None:
    mounted = tmp_path / "mounted" / top
    unlimited = "max" if names == NEW else 1 << 62
    group(mounted / "job" / "worker", names, unlimited, 300, 0)
    assert room(tmp_path, line) >= 1 << 61
    group(mounted / "job", names, 1000, 900, 50)
    assert room(tmp_path, line) == 150
    group(mounted, names, 500, 400, 0)
    assert room(tmp_path, line) == 100


def test_a_container_that_sees_its_own_group_at_the_top_is_known(tmp_path: Path) -> None:
    group(tmp_path / "mounted" / "memory", OLD, 1000, 600, 0)
    assert room(tmp_path, "4:memory:/docker/0a1b") == 400


def test_where_nobody_tells_there_is_no_limit(tmp_path: Path) -> None:
    assert room(tmp_path, "0::/") == math.inf
    assert memory_room_bytes(tmp_path, tmp_path / "none") == math.inf
