"""A run of 2,000 processes is opened, followed and compacted with few open files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rltrace.testing.inside.trace import (
    SAMPLES,
    SPANS,
    Stage,
    TableWriter,
    create_run,
    update_run_json,
)

PROCESSES = 2_000
OPEN_FILES = 64

READER = """
import json, resource, sys
from pathlib import Path
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), hard))
import rltrace
from rltrace.testing.inside.trace import Follower
from rltrace.testing.inside.trace import compact, delete_segments

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
    path = tmp_path / "run"
    create_run(str(path), ["job"], {}, "test")
    update_run_json(str(path), end_real_ns=1_790_000_001 * 10**9, exit_code=0)
    for number in range(PROCESSES):
        who = f"host{number % 250}-{number}-1-aa"
        described = {
            "who": who,
            "host": f"host{number % 250}",
            "pid": number + 10_000_000,  # of nobody here
            "node": f"node-{number % 250}",
            "start_ns": 1,
            "clock": {"monotonic_ns": 1, "real_ns": 1_790_000_000 * 10**9, "bracket_ns": 1},
        }
        (path / "process" / f"{who}.json").write_text(json.dumps(described))
        (path / "names" / f"{who}.jsonl").write_text('[0,"work"]\n')
        for table in (SPANS, SAMPLES):
            writer = TableWriter(table, str(path / table.name), who)
            for n in range(3):
                at = 1_000 * (3 * number + n) + 5
                if table is SPANS:
                    writer.append(start_ns=at, end_ns=at + 9, name=0, stage=int(Stage.ROLLOUT))
                else:
                    writer.append(time_ns=at, counter=0, value=n)
    done = subprocess.run(
        [sys.executable, "-c", READER, str(path), str(OPEN_FILES)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("parts") > 2 * OPEN_FILES / 10
    rows = 3 * PROCESSES
    assert found == {
        "processes": PROCESSES,
        "segments": [rows, PROCESSES, 1],
        "problems": 0,
        "followed": rows,
        "compacted": rows,
        "parquet": [rows, PROCESSES, 1],
    }
