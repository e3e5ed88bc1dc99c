"""`rltrace top` where there is no terminal, and `rltrace wrap --live`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.make_trace import Workload, make
from rltrace.cli import main
from rltrace.testing.inside.trace import create_run
from tests.hooks.conftest import WRAP, clean_environment
from tests.patience import PATIENCE_S

JOB = Path(__file__).parents[1] / "analysis" / "live" / "job.py"


def top(*words: str) -> Result:
    return CliRunner().invoke(main, ["top", *words])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("top") / "run"
    make(path, Workload(steps=4, prompts=4, group=2))
    return path


def test_one_frame_is_printed_where_there_is_no_terminal(run: Path) -> None:
    plain, once = top(str(run)), top(str(run), "--once")
    assert plain.exit_code == once.exit_code == 0
    assert plain.output == once.output
    assert plain.output.startswith("rltrace top · run")
    assert "4 steps done" in plain.output
    assert "\x1b" not in plain.output


def test_json(run: Path) -> None:
    shown = json.loads(top(str(run), "--json").output)
    assert shown["schema"] == "rltrace-live/1"
    assert shown["job"]["state"] == "ended"
    assert shown["totals"]["steps"] == 4
    assert {row["stage"] for row in shown["window"]["stages"]} >= {"rollout", "train", "sync"}


def test_the_newest_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        create_run(str(tmp_path / "rltrace-runs" / name), ["job"], {}, "0")
    assert "rltrace top · second" in top("--once").output


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no-such-run"], 4, "does not exist"),
        (["--interval", "0"], 2, "0.1<=x<=3600"),
    ],
)
def test_wrong_usage_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found = top(*words)
    assert found.exit_code == code
    assert said in found.output
    assert "Traceback" not in found.output


def wrap_live(folder: Path, *command: str) -> subprocess.Popen[str]:
    words = [*WRAP, "--live", "--out", str(folder / "run"), "--", *command]
    return subprocess.Popen(
        words,
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_wrap_says_a_line_a_step(tmp_path: Path) -> None:
    with wrap_live(tmp_path, sys.executable, str(JOB), "--steps", "8") as job:
        out, err = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("rltrace: step ")]
    steps = [int(re.match(r"rltrace: step (\d+): ", line)[1]) for line in lines]
    assert steps == list(range(8))
    assert all("train" in line and "rollout" in line for line in lines)
    assert "46 tokens trained on, lag 1" in lines[-1]
    assert "the trace is in" in err.splitlines()[-1]


def test_the_lines_come_while_the_job_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(JOB), "--steps", "100000", "--train-s", "0.1"]
    with wrap_live(tmp_path, *command) as job:
        assert job.stderr is not None
        assert any("step 0: " in line for line in job.stderr)
        assert job.poll() is None
        job.send_signal(signal.SIGTERM)  # signals still reach the job, not the thread
        assert job.wait(timeout=PATIENCE_S) == 128 + signal.SIGTERM


def test_a_live_wrap_whose_run_is_deleted_leaves_the_job_alone(tmp_path: Path) -> None:
    script = (
        "import os, shutil, sys, time; time.sleep(1)\n"
        "while os.path.exists(sys.argv[1]):\n"  # the agent may put a file there meanwhile
        "    shutil.rmtree(sys.argv[1], ignore_errors=True)\n"
        "time.sleep(2); print('done')"
    )
    with wrap_live(tmp_path, sys.executable, "-c", script, str(tmp_path / "run")) as job:
        out, err = job.communicate(timeout=PATIENCE_S)
    assert (job.returncode, out) == (0, "done\n")
    assert "Traceback" not in err


def test_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    with wrap_live(tmp_path, "./no-such-program") as job:
        job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 127
