"""Processes of a run: whose children they are, those of another run or whose own file is lost, and
2,000 of them with few open files."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.handmade_runs import process, rows, run_of
from rltrace.testing.inside.trace import (
    RltraceError,
    Stage,
    create_run,
    delete_segments,
    update_run_json,
)
from rltrace.testing.inside.trace import RunFollower as Follower
from rltrace.testing.inside.trace import compaction_compact as compact
from rltrace.testing.run_files import Process
from rltrace.trace.read.processes import roles_of_parents
from tests.cli.conftest import invoke
from tests.conftest import recorded
from tests.hooks.conftest import untraced


def facts_of(pid: int, ppid: int, start_ns: int, role: str | None = None, **more: Any) -> Any:
    facts = {"node": "n", "host": "h", "pid": pid, "ppid": ppid, "start_ns": start_ns, **more}
    return facts if role is None else {**facts, "role": role}


ACTOR = facts_of(10, 1, 100, "rollout")


def test_a_child_and_its_children_belong_to_the_nearest_role() -> None:
    family = {
        "actor": ACTOR,
        "core": facts_of(11, 10, 200),
        "worker": facts_of(12, 11, 300),
        "forked": facts_of(13, 1, 400, forked_from="core"),  # its parent has ended
        "grader": facts_of(14, 12, 500, "reward"),
        "of the grader": facts_of(15, 14, 600),
    }
    assert roles_of_parents(family) == {
        "core": "rollout",
        "worker": "rollout",
        "forked": "rollout",
        "of the grader": "reward",
    }


def test_of_two_programs_under_one_pid_the_one_that_ran_then_is_the_parent() -> None:
    """Ray executes a worker twice under one pid; later a pid is somebody else's."""
    found = roles_of_parents(
        {
            "first": facts_of(10, 1, 100, "setup"),
            "actor": facts_of(10, 1, 150, "rollout"),
            "child": facts_of(11, 10, 200),
            "next": facts_of(10, 1, 300, "reward"),
            "its child": facts_of(12, 10, 400),
        }
    )
    assert found == {"child": "rollout", "its child": "reward"}


@pytest.mark.parametrize(
    "child",
    [
        facts_of(11, 10, 200, host="another"),
        facts_of(11, 10, 200, node="another"),
        facts_of(11, 1, 200),
        facts_of(11, 10, 50),  # older than whoever has that pid now
        facts_of(11, 12, 200, forked_from="child"),
        {"ppid": [10], "start_ns": "soon", "forked_from": {}},
        {},
    ],
)
def test_nobody_is_taken_for_a_parent_who_is_not(child: dict[str, Any]) -> None:
    assert roles_of_parents({"actor": ACTOR, "child": child}) == {}


FIVE_STEPS = """
for n in range(5):
    with rltrace.step(n):
        with rltrace.span("rollout"): pass
"""
COUNTED = "SELECT count(*), count(DISTINCT who), max(end_ns) - min(start_ns) < 60e9 FROM spans"


def run_at(path: Path) -> Path:
    """A run of five steps that has ended."""
    create_run(str(path), ["python", "train.py"], {}, "test")
    recorded(path, FIVE_STEPS)
    update_run_json(str(path), end_real_ns=time.time_ns(), exit_code=0)
    time.sleep(0.2)  # the next one begins
    return path


def copy_segments(source: Path, to: Path) -> str:
    """Copies the spans of a run into another; the name of their file."""
    (file,) = (source / "spans").iterdir()
    shutil.copy(file, to / "spans")
    return f"spans/{file.name}"


@pytest.mark.parametrize("is_older", [True, False], ids=["an older run", "a newer run"])
def test_segments_of_another_run_are_named_and_left_out(tmp_path: Path, is_older: bool) -> None:
    runs = run_at(tmp_path / "first"), run_at(tmp_path / "second")
    other, run = runs if is_older else runs[::-1]
    named = copy_segments(other, run)
    opened = rltrace.open_run(run)
    assert opened.rows_of_processes("spans").total() == 10
    assert opened.sql(COUNTED).fetchall() == [(10, 1, True)]
    (problem,) = (one for one in opened.problems if one["target"] == named)
    assert problem["what"] == "another-run"
    assert len(opened.processes) == 1
    for words in (["info"], ["report"], ["report", "--full"]):
        assert "another-run" in invoke(*words, run).output
    follower = Follower(run)
    assert sum(len(follower.poll()["spans"]) for _ in range(2)) == 10
    compact(opened)
    with pytest.raises(RltraceError, match="or are of another run"):
        delete_segments(run)  # which may be all that there is of it
    again = rltrace.open_run(run)
    assert again.sql(COUNTED).fetchall() == [(10, 1, True)]
    assert "another-run" in [one["what"] for one in again.problems]


def test_segments_of_a_host_of_which_the_run_knows_nothing_are_left_out(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run")
    (file,) = (run / "spans").iterdir()
    host = file.name.rsplit("-", 3)[0]
    shutil.copy(file, run / "spans" / file.name.replace(host, "elsewhere", 1))
    opened = rltrace.open_run(run)
    assert opened.sql(COUNTED).fetchall() == [(10, 1, True)]
    assert "another-run" in [one["what"] for one in opened.problems]


def test_what_a_process_recorded_whose_file_is_lost_is_told_by_the_clock_of_its_host(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    create_run(str(run), ["python", "train.py"], {}, "test")
    recorded(run, FIVE_STEPS)
    recorded(run, FIVE_STEPS)
    before = rltrace.open_run(run).sql("SELECT start_ns FROM spans ORDER BY 1").fetchall()
    for folder in ("process", "names"):
        sorted((run / folder).iterdir())[0].unlink()
    opened = rltrace.open_run(run)
    found = opened.sql("SELECT start_ns FROM spans ORDER BY 1").fetchall()
    assert len(found) == len(before) == 20
    assert max(abs(a - b) for (a,), (b,) in zip(before, found, strict=True)) < 10**9
    assert opened.sql("SELECT count(*) FROM spans WHERE name = '?'").fetchall() == [(10,)]
    assert "no-process-file" in [one["what"] for one in opened.problems]
    compact(opened)
    again = rltrace.open_run(run)
    assert len(again.processes) == 2
    assert "no-process-file" in [one["what"] for one in again.problems]


PROCESSES = 2_000
OPEN_FILES = 64

READER = """
import json, resource, sys
from pathlib import Path
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), hard))
import rltrace
from rltrace.testing.inside.trace import RunFollower as Follower
from rltrace.testing.inside.trace import compaction_compact as compact, delete_segments

path = Path(sys.argv[1])
ask = "SELECT count(*), count(DISTINCT who), count(DISTINCT name) FROM spans"
run = rltrace.open_run(path)
found = {"processes": len(run.processes), "segments": run.sql(ask).fetchall()[0]}
found["problems"] = len(run.problems)
follower = Follower(path)
found["followed"] = len(follower.poll(frozenset(p.who for p in run.processes))["spans"])
found["followed"] += len(follower.poll(frozenset(p.who for p in follower.processes))["spans"])
found["compacted"] = compact(rltrace.open_run(path), part_bytes=20_000).rows["spans"]
delete_segments(path)
found["parts"] = len(list((path / "parquet" / "spans").glob("*.parquet")))
found["parquet"] = rltrace.open_run(path).sql(ask).fetchall()[0]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_2000_processes_need_few_open_files(tmp_path: Path) -> None:
    def worker(number: int) -> Process:
        times = [(3 * number + n) / 1000 for n in range(3)]
        made = process("worker", *((Stage.ROLLOUT, at, at + 0.001) for at in times), rank=number)
        return rows(made, "samples", time_s=times, counter=["n"] * 3, value=[0.0, 1.0, 2.0])

    path = run_of(tmp_path, *map(worker, range(PROCESSES))).path
    done = untraced(sys.executable, "-c", READER, str(path), str(OPEN_FILES))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("parts") > 2 * OPEN_FILES / 10
    recorded = 3 * PROCESSES
    assert found == {
        "processes": PROCESSES,
        "segments": [recorded, PROCESSES, 1],
        "problems": 0,
        "followed": recorded,
        "compacted": recorded,
        "parquet": [recorded, PROCESSES, 1],
    }
