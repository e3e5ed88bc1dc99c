"""Every command on every kind of run, and on what is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import invoke

COMMANDS = (
    ("report",),
    ("report", "--json"),
    ("report", "--markdown"),
    ("query", "SELECT count(*) FROM spans"),
    ("info",),
    ("compact",),
    ("timeline",),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_works_on_a_run(run: Path, command: tuple[str, ...]) -> None:
    result = invoke(*command, run)
    assert result.exit_code == 0, result.output
    assert result.output.strip()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_works_on_an_empty_run(run_path: Path, command: tuple[str, ...]) -> None:
    result = invoke(*command, run_path)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code in (0, 3), result.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_refuses_what_is_no_run(tmp_path: Path, command: tuple[str, ...]) -> None:
    result = invoke(*command, tmp_path)
    assert result.exit_code == 4
    assert len(result.output.strip().splitlines()) == 1
    assert "is no run" in result.output


def test_a_deleted_working_directory_is_no_traceback(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"rmdir {gone}; exec {sys.executable} -m rltrace report"
    done = subprocess.run(
        ["sh", "-c", script], cwd=gone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--price", "-1"),
        ("--price", "nan"),
        ("--price", "inf"),
        ("--price", "0"),
        ("--price", "1e308"),
        ("--lag-budget", "-2"),
        ("--nonsense",),
        ("--json", "--markdown"),
    ],
)
def test_wrong_options_are_wrong_usage(run: Path, options: tuple[str, ...]) -> None:
    assert invoke("report", *options, run).exit_code == 2


def test_an_unknown_option_of_wrap_is_not_taken_for_a_command() -> None:
    assert invoke("wrap", "--bogus", "--", "true").exit_code == 2


def test_a_run_that_is_still_recorded_in_the_background_is_not_compacted(run: Path) -> None:
    """`wrap` has ended; a process that its command left behind has not."""
    (file,) = (run / "process").iterdir()
    told = json.loads(file.read_text())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as left:
        told |= {"pid": left.pid, "start_ns": time.monotonic_ns()}
        file.write_text(json.dumps(told))
        refused = invoke("compact", "--delete-segments", run)
        assert refused.exit_code == 2
        assert "is still being recorded, into its segments" in refused.output
        assert not (run / "parquet").exists()  # nothing is done by halves
        assert "the job goes on" in invoke("compact", run).output
        left.kill()
        left.wait()
    assert invoke("compact", "--delete-segments", run).exit_code == 0


def test_another_process_under_an_old_number_does_not_keep_a_run_open(run: Path) -> None:
    (file,) = (run / "process").iterdir()
    told = json.loads(file.read_text()) | {"pid": os.getppid(), "start_ns": 1}
    file.write_text(json.dumps(told))
    assert invoke("compact", run).exit_code == 0


def test_compacted_segments_can_be_deleted(run: Path) -> None:
    assert invoke("compact", "--delete-segments", run).exit_code == 0
    assert not list(run.glob("*/*.arrows"))
    assert "are kept" not in invoke("compact", run).output
    assert invoke("query", "--csv", "SELECT count(*) AS n FROM spans", run).output == "n\n15\n"


def test_wrap_without_a_command_is_wrong_usage() -> None:
    result = invoke("wrap")
    assert result.exit_code == 2
    assert "rltrace wrap -- python train.py" in result.output


def test_json_of_one_look(run: Path) -> None:
    told = json.loads(invoke("top", "--once", "--json", run).output)
    assert told["schema"] == "rltrace-live/1"


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["--help"], {"rich", "numpy", "duckdb", "pyarrow", "pygments"}),
        (["ls", "."], {"numpy", "duckdb", "pyarrow"}),
        (["info", "run"], {"duckdb", "scipy"}),
        (["wrap", "-h"], {"rich", "numpy", "duckdb", "pyarrow"}),
    ],
)
def test_a_small_command_loads_little(run: Path, arguments: list[str], unneeded: set[str]) -> None:
    code = (
        "import sys; from rltrace.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=run.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not unneeded & set(done.stderr.split())
