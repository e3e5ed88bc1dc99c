"""The benchmark for a GPU runs without one, in small: all of its parts, and what they check."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

HEAVY = ("ray", "duckdb", "rich", "click", "zstandard", "perfetto", "pynvml")

ALONE = f"""
import runpy, sys
for name in {HEAVY}:
    sys.modules[name] = None  # who imports it gets an ImportError
sys.argv = ["sync", "--cpu", "--json", sys.argv[1], *sys.argv[2:]]
runpy.run_module("benchmarks.gpu.sync", run_name="__main__")
"""


@pytest.mark.slow
def test_all_parts_run_without_a_gpu_and_without_what_a_gpu_machine_lacks(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, "-c", ALONE, str(file)]
    # A module that is run by name is what other processes import anew.
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert not found["failed"]
    named = {row["name"]: row for row in found["rows"]}
    assert all(row["holds"] is not False for row in found["rows"]), done.stdout
    for what in ("7B: pack and unpack", "compare 1 %", "publish to the host", "pull from the host"):
        assert len(named[what]["seconds"]) > 1
        assert named[what]["floor_s"] > 0
    assert named["whole pulls of the successor"]["value"] == "5 of 5"


def test_a_part_that_fails_does_not_take_the_others_along(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.gpu.sync", "--cpu", "--json", str(file)]
    command += ["--only", "peers,compare"]  # there are no weights for peers, nor floors
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert "peers: failed" in done.stdout
    found = json.loads(file.read_text())
    assert "Traceback" in found["failed"]["peers"]
    assert set(found["part_s"]) == {"peers", "compare"}
