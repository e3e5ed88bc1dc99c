"""`rltrace wrap` in the place of a command: its exit code, signals, terminal and failures."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rltrace
from rltrace.cli import main
from rltrace.testing.inside.trace import open_run
from tests.cli.conftest import invoke
from tests.hooks.conftest import WRAP, clean_environment
from tests.patience import PATIENCE_S

PY = sys.executable


def wrap(
    *words: str, cwd: Path, options: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs `rltrace wrap OPTIONS -- WORDS`."""
    return subprocess.run(
        [*WRAP, *options, "--", *words],
        cwd=cwd,
        env=clean_environment(**env),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def runs(cwd: Path) -> list[Path]:
    return sorted((cwd / "rltrace-runs").glob("[!.]*"))


def until(condition: object, seconds: float = PATIENCE_S) -> bool:
    """Waits for a callable to become true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


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
    said = f"rltrace: the trace is in rltrace-runs/{run.name}; next: rltrace report\n"
    assert done.stderr == said
    named = wrap(PY, "-c", "pass", cwd=tmp_path, options=("--out", "my run"))
    assert named.stderr.endswith("in my run; next: rltrace report 'my run'\n")
    nothing = wrap("true", cwd=tmp_path)
    assert "no Python process was traced" in nothing.stderr


def test_a_hook_that_never_struck_is_told(tmp_path: Path) -> None:
    """A module that is never imported cannot miss anything, so nobody else would tell."""
    (tmp_path / "loop.py").write_text("def generate(): pass\ndef train(): pass\ndef begin(): pass")
    hooks = ("loop:generate=other", "loop:begin=step", "loop:train=train", "lop:train=train")
    options = [word for hook in hooks for word in ("--hook", hook)]
    code = "import loop; loop.generate(); loop.begin()"
    done = wrap(PY, "-c", code, cwd=tmp_path, options=tuple(options))
    told = [line.partition(" --hook ")[2].split()[0] for line in done.stderr.splitlines()[:-1]]
    assert told == ["loop:train=train", "lop:train=train"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ()),
        (("--hook", "nonsense"), ("true",)),
        (("--hook", "a.b:c=no-such-stage"), ("true",)),
        (("--hook", "a b:c=train"), ("true",)),
        (("--out", ""), ("true",)),
    ],
)
def test_wrong_usage_is_one_sentence(
    tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = wrap(*words, cwd=tmp_path, options=options)
    assert done.returncode == 2
    assert done.stderr.startswith("rltrace: ")
    assert done.stderr.count("\n") == 1
    assert runs(tmp_path) == []


def test_options_of_an_earlier_version_are_taken_and_record_everything(tmp_path: Path) -> None:
    code = "import rltrace\nfor n in range(20): rltrace.reward(str(n), n)"
    done = wrap(PY, "-c", code, cwd=tmp_path, options=("--max-bytes", "1MB", "--sample", "10%"))
    assert done.returncode == 0
    assert "rltrace compact --delete-segments" in done.stderr
    assert done.stderr.count(" is gone") == 2
    (run,) = runs(tmp_path)
    opened = rltrace.open_run(run)
    assert opened.rows("rewards") == 20
    assert not {"max_bytes", "sampled"} & opened.meta["settings"].keys()


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


def test_the_agent_keeps_no_pipe_open(tmp_path: Path) -> None:
    """`rltrace wrap ... | tee log` ends with the job, although the agent lives a moment longer."""
    out = subprocess.check_output(
        f"'{PY}' -c 'from rltrace.cli import main; main()' wrap -- echo hi 2>&1 | cat",
        shell=True,
        cwd=tmp_path,
        env=clean_environment(),
        timeout=PATIENCE_S,
        text=True,
    )
    assert out.startswith("hi\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_sent_to_wrap_reach_the_child(tmp_path: Path, number: signal.Signals) -> None:
    code = f"""
import os, signal, time
def on(number, frame):
    os.write(1, signal.Signals(number).name.encode())
    os._exit(9)
signal.signal({int(number)}, on)
os.write(1, b"ready\\n")
time.sleep(600)
"""
    process = subprocess.Popen(
        [*WRAP, "--", PY, "-c", code],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (out, process.returncode) == (number.name, 9), err


def test_ctrl_c_on_the_terminal_reaches_the_child_once(tmp_path: Path) -> None:
    """The terminal sends it to the whole process group: wrap must neither die nor pass it on."""
    code = """
import signal, sys, time
count = 0
def on(number, frame):
    global count
    count += 1
signal.signal(signal.SIGINT, on)
print("ready", flush=True)
end = time.monotonic() + 120
while not count and time.monotonic() < end: time.sleep(0.05)
time.sleep(1)  # another would come
print("interrupts:", count, flush=True)
sys.exit(5)
"""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(PY, [*WRAP, "--", PY, "-c", code], clean_environment())
    text = b""
    while b"ready" not in text:
        text += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    try:
        while chunk := os.read(terminal, 1024):
            text += chunk
    except OSError:
        pass  # the terminal's other side is closed
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"interrupts: 1" in text
    assert os.waitstatus_to_exitcode(status) == 5


def test_the_child_starts_with_the_signals_that_wrap_was_given(tmp_path: Path) -> None:
    code = (
        "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),"
        " signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT))"
    )
    command = [*WRAP, "--", PY, "-c", code]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # as nohup does
    )
    assert done.stdout.startswith("[] 1 <built-in function default_int_handler>")


# --- the job runs, whatever happens to us ---------------------------------------------------------


def test_a_run_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = wrap(PY, "-c", "print(1)", cwd=tmp_path, options=("--sync", "--out", "file/run"))
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.startswith("rltrace: cannot record into ")
    assert done.stderr.endswith("; the job runs untraced and without --sync\n")
    assert done.stderr.count("\n") == 1


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
    assert [line.partition(": recording needs Linux")[0] for line in err.splitlines()] == [
        "rltrace: cannot record into rltrace-runs",
        "rltrace: cannot record into run",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        (small / "filler").write_bytes(b"x" * (40 << 10))
        code = """
import rltrace, subprocess, sys
for i in range(5000):
    with rltrace.span("rollout"): pass
subprocess.run([sys.executable, "-c", "print('child')"], check=True)
print("done")
"""
        done = wrap(PY, "-c", code, cwd=tmp_path, options=("--out", str(small / "run")))
        assert (done.returncode, done.stdout) == (0, "child\ndone\n")
        assert "Traceback" not in done.stderr
        again = wrap("echo", "fine", cwd=tmp_path, options=("--out", str(small / "again")))
        assert (again.returncode, again.stdout) == (0, "fine\n")
        assert "Traceback" not in again.stderr
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.mark.parametrize("descriptors", [6, 7, 8, 9, 10, 12])
def test_few_descriptors(tmp_path: Path, descriptors: int) -> None:
    """The job runs, and nothing is left where the cost of recording was measured."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    script = f'ulimit -n {descriptors}; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *WRAP, "--", "echo", "fine"],
        cwd=tmp_path,
        env=clean_environment(TMPDIR=str(temporary)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == "fine\n", done.stderr
    assert "Traceback" not in done.stderr
    assert list(temporary.iterdir()) == []


def test_a_wrap_that_is_killed_leaves_the_job_alone(tmp_path: Path) -> None:
    code = (
        "import os, time; print('ready', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
        "open('finished', 'w')"
    )
    process = subprocess.Popen(
        [*WRAP, "--", PY, "-c", code],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    assert process.wait() == -9
    (tmp_path / "go").touch()
    assert until((tmp_path / "finished").exists)
    (run,) = runs(tmp_path)
    ended = until(lambda: json.loads((run / "run.json").read_text())["end_real_ns"] is not None)
    assert ended  # the agent saw to that
    process.stdout.close()


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
    assert "the job outlives its command (1 process)" in done.stderr.splitlines()[-1]
    (tmp_path / "go").touch()
    assert until((tmp_path / "gone").exists)
    recorded = open_run(tmp_path / "run")
    ((last,),) = recorded.sql("select max(end_ns) from spans").fetchall()
    lasted_s = (last - recorded.meta["start_real_ns"]) / 1e9
    info = json.loads(invoke("info", tmp_path / "run", "--json").stdout)
    report = json.loads(invoke("report", tmp_path / "run", "--json").stdout)["run"]
    (listed,) = json.loads(invoke("ls", tmp_path, "--json").stdout)
    for told in (info["seconds"], report["lasted_s"], listed["seconds"]):
        assert told == pytest.approx(lasted_s)
    assert info["command_s"] == report["command_s"] < lasted_s - 1
    assert "outlived its command" in invoke("info", tmp_path / "run").stdout
    assert "outlived its command" in invoke("report", tmp_path / "run").stdout
