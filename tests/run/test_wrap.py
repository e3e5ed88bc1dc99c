"""`rltrace wrap` in the place of a command: its exit code, streams and failures, those of rltrace
itself too, and what it says of steps (`--live`)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.cli import main
from rltrace.run.run_start import WrapOptions as Asked
from rltrace.testing.inside.run import gate_settings
from rltrace.testing.inside.run import wrap as wrapping
from rltrace.testing.inside.trace import open_run
from tests.cli.conftest import invoke
from tests.hooks.conftest import WRAP, clean_environment, untraced, wrapped
from tests.patience import PATIENCE_S, until

PY = sys.executable
LIVE_JOB = Path(__file__).parents[1] / "analysis" / "live" / "job.py"


def wrap(
    *words: str, cwd: Path, options: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs `rltrace wrap OPTIONS -- WORDS`."""
    return wrapped(cwd, *options, "--", *words, **env)


def started(cwd: Path, *words: str, **how: Any) -> subprocess.Popen[str]:
    """Starts `rltrace wrap WORDS`, whose output is read while it goes on; `env` is added to a clean
    environment."""
    environment = clean_environment(**how.pop("env", {}))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*WRAP, *words], cwd=cwd, env=environment, text=True, **(pipes | how))


def runs(cwd: Path) -> list[Path]:
    return sorted((cwd / "rltrace-runs").glob("[!.]*"))


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -TERM $$"], 128 + 15),
        (["sh", "-c", "kill -KILL $$"], 128 + 9),
        ([PY, "-c", "1 / 0"], 1),
        (["no-such-command"], 127),
        (["./no-such-file"], 127),
        (["./plain.txt"], 126),
        (["/"], 126),
    ],
)
def test_exit_codes_are_the_commands(tmp_path: Path, command: list[str], code: int) -> None:
    (tmp_path / "plain.txt").write_text("not a program")
    done = wrap(*command, cwd=tmp_path)
    assert done.returncode == code
    said = [line for line in done.stderr.splitlines() if line.startswith("rltrace:")]
    assert len(said) == 1
    if code in (126, 127):
        assert runs(tmp_path) == []
    else:
        (run,) = runs(tmp_path)
        assert json.loads((run / "run.json").read_text())["exit_code"] == code


def test_the_last_line_says_where_the_trace_is(tmp_path: Path) -> None:
    done = wrap(PY, "-c", "pass", cwd=tmp_path)
    (run,) = runs(tmp_path)
    (line,) = done.stderr.splitlines()
    assert f" rltrace-runs/{run.name};" in line
    named = wrap(PY, "-c", "pass", cwd=tmp_path, options=("--out", "my run"))
    assert named.stderr.endswith("next: rltrace report 'my run'\n")
    assert "no Python process" in wrap("true", cwd=tmp_path).stderr


def test_a_hook_that_never_struck_is_told(tmp_path: Path) -> None:
    """A module that is never imported cannot miss anything, so nobody else would tell."""
    (tmp_path / "loop.py").write_text("def generate(): pass\ndef train(): pass\ndef begin(): pass")
    hooks = ("loop:generate=other", "loop:begin=step", "loop:train=train", "lop:train=train")
    options = [word for hook in hooks for word in ("--hook", hook)]
    code = "import loop; loop.generate(); loop.begin()"
    done = wrap(PY, "-c", code, cwd=tmp_path, options=tuple(options))
    told = [line.partition(" --hook ")[2].split()[0] for line in done.stderr.splitlines()[:-1]]
    assert told == ["loop:train=train", "lop:train=train"]


def test_standard_streams_and_inherited_descriptors_are_the_childs(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    code = f"import os, sys; os.write({writer}, sys.stdin.buffer.read()[::-1])"
    done = subprocess.run(
        [*WRAP, "--", PY, "-c", code],
        cwd=tmp_path,
        env=clean_environment(),
        input=b"abc",
        pass_fds=[writer],
        check=False,
    )
    os.close(writer)
    assert done.returncode == 0
    assert os.read(reader, 10) == b"cba"
    os.close(reader)


def test_the_child_starts_with_the_signals_that_wrap_was_given(tmp_path: Path) -> None:
    code = (
        "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),"
        " signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT))"
    )
    ignored = 'trap "" HUP; exec "$@"'  # as nohup does
    done = untraced("sh", "-c", ignored, "sh", *WRAP, "--", PY, "-c", code, cwd=tmp_path)
    assert done.stdout.startswith("[] 1 <built-in function default_int_handler>")


def test_a_run_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = wrap(PY, "-c", "print(1)", cwd=tmp_path, options=("--sync", "--out", "file/run"))
    assert (done.returncode, done.stdout) == (0, "1\n")
    (line,) = done.stderr.splitlines()
    assert "file/run" in line
    assert line.endswith("without --sync")


def test_what_is_not_linux_records_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    for missing in ("posix_fallocate", "sched_getaffinity"):
        monkeypatch.delattr(os, missing)
    with pytest.raises(SystemExit, match="0"):
        main(["wrap", "--", PY, "-c", "print(1)"])
    assert rltrace.start("run") is None
    out, err = capfd.readouterr()
    assert out == "1\n"
    assert ["needs Linux" in line for line in err.splitlines()] == [True, True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("descriptors", [6, 7, 8, 9, 10, 12])
def test_few_descriptors(tmp_path: Path, descriptors: int) -> None:
    """The job runs, and nothing is left where the cost of recording was measured."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    limited = ("sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *WRAP)
    done = untraced(*limited, "--", "echo", "fine", cwd=tmp_path, TMPDIR=str(temporary))
    assert done.stdout == "fine\n", done.stderr
    assert "Traceback" not in done.stderr
    assert list(temporary.iterdir()) == []


DAEMON = """
import os, sys, time, rltrace
def work(n):
    with rltrace.span("rollout"): time.sleep(0.01)
work(0)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.closerange(3, 1024)
null = os.open("/dev/null", os.O_RDWR)
for number in (0, 1, 2): os.dup2(null, number)
while not os.path.exists("go"): work(1)
end = time.monotonic() + 1
while time.monotonic() < end: work(2)
os.rename("go", "gone")
"""


def test_a_job_that_outlives_its_command(tmp_path: Path) -> None:
    """It is said, and what it recorded counts in its length, wherever that is told."""
    done = wrap(PY, "-c", DAEMON, cwd=tmp_path, options=("--out", "run"))
    assert "(1 process)" in done.stderr.splitlines()[-1]
    (tmp_path / "go").touch()
    until((tmp_path / "gone").exists)
    recorded = open_run(tmp_path / "run")
    ((last,),) = recorded.sql("select max(end_ns) from spans").fetchall()
    lasted_s = (last - recorded.meta["start_real_ns"]) / 1e9
    info = json.loads(invoke("info", tmp_path / "run", "--json").stdout)
    report = json.loads(invoke("report", tmp_path / "run", "--json").stdout)["run"]
    (listed,) = json.loads(invoke("ls", tmp_path, "--json").stdout)
    for told in (info["lasted_s"], report["lasted_s"], listed["lasted_s"]):
        assert told == pytest.approx(lasted_s)
    assert info["command_s"] == report["command_s"] < lasted_s - 1


def wrap_live(folder: Path, *command: str) -> subprocess.Popen[str]:
    return started(folder, "--live", "--out", "run", "--", *command)


def test_wrap_says_a_line_a_step(tmp_path: Path) -> None:
    with wrap_live(tmp_path, sys.executable, str(LIVE_JOB), "--steps", "8") as job:
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
    command = [sys.executable, str(LIVE_JOB), "--steps", "100000", "--train-s", "0.1"]
    with wrap_live(tmp_path, *command) as job:
        assert job.stderr is not None
        assert any("step 0: " in line for line in job.stderr)
        assert job.poll() is None
        job.send_signal(signal.SIGTERM)  # signals still reach the job, not the thread
        assert job.wait(timeout=PATIENCE_S) == 128 + signal.SIGTERM


LEAVES_A_FILE = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch(); raise SystemExit(7)"


def _wrong(*_: object) -> None:
    raise KeyError("a mistake")


@pytest.mark.parametrize("part", ["run_start.start_agent", "_make_run", "shipped_to", "_finish"])
def test_the_job_runs_and_ends_as_it_would(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"{wrapping.__name__}.{part}", _wrong)
    ran = tmp_path / "ran"
    code = wrapping.wrap([PY, "-c", LEAVES_A_FILE, str(ran)], tmp_path / "run", Asked())
    assert (code, ran.exists()) == (7, True)
    said = capfd.readouterr().err
    assert "KeyError at test_wrap.py" in said
    assert "Traceback" not in said


def test_a_mistake_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_settings, "read_settings", _wrong)
    found = invoke("gate", tmp_path)
    assert found.exit_code == 70
    assert found.output.startswith("rltrace: this is a mistake in rltrace ")
    assert "(KeyError at rltrace/cli/gating.py:" in found.output
    assert "RLTRACE_TRACEBACK=1" in found.output
    monkeypatch.setenv("RLTRACE_TRACEBACK", "1")
    with pytest.raises(KeyError):
        main(["gate", str(tmp_path)])
