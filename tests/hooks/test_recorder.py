"""The recorder under what happens to processes: forks, full disks, many names, signals."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import rltrace
from rltrace.hooks import recorder as recording
from rltrace.hooks.recorder import Recorder
from rltrace.testing.inside.trace import create_run
from tests.conftest import Record


def rows(run_path: Path, query: str) -> list[tuple]:
    return rltrace.open_run(run_path).sql(query).fetchall()


def test_a_fork_in_the_middle_of_a_span_leaves_the_parents_rows_alone(
    run_path: Path, record: Record
) -> None:
    record("""
import time
with rltrace.step(3):
    with rltrace.span("rollout", items=1) as parent_span:
        pid = os.fork()
        if pid == 0:
            with rltrace.span("reward", items=2): pass
            parent_span.set(items=99)
            parent_span.end()
            rltrace.step(77).end()
            os._exit(0)
        os.waitpid(pid, 0)
        time.sleep(0.05)
    with rltrace.span("train", items=3): pass
""")
    found = rows(run_path, "SELECT pid, stage, step, items FROM spans ORDER BY start_ns")
    parent = found[0][0]
    assert [row[1:] for row in found if row[0] == parent] == [
        ("step", 3, None),
        ("rollout", 3, 1),
        ("train", 3, 3),
    ]
    assert [row[1:] for row in found if row[0] != parent] == [("reward", 3, 2), ("step", 77, None)]
    ((seconds,),) = rows(
        run_path, "SELECT (end_ns - start_ns) / 1e9 FROM spans WHERE stage = 'rollout'"
    )
    assert seconds >= 0.05  # ended by the parent, not by its child


def test_a_forked_child_that_records_nothing_leaves_nothing(run_path: Path, record: Record) -> None:
    record("""
recorder.active().describe(role="learner")
for action in (lambda: None, lambda: rltrace.counter("n", 1)):
    pid = os.fork()
    if pid == 0:
        action()
        os._exit(0)
    os.waitpid(pid, 0)
""")
    learner, child = rltrace.open_run(run_path).processes
    assert (learner.role, child.role) == ("learner", None)
    assert child.facts["forked_from"] == learner.who


def test_forking_from_threads_that_record_never_hangs(run_path: Path, record: Record) -> None:
    record("""
import threading, time
stop = False
def work():
    while not stop:
        with rltrace.span("rollout"): pass
threads = [threading.Thread(target=work) for _ in range(3)]
for t in threads: t.start()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        for _ in range(500):
            with rltrace.span("reward"): pass
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop = True
for t in threads: t.join()
""")
    assert rows(run_path, "SELECT count(*) FROM spans WHERE stage = 'reward'") == [(10_000,)]


def test_multiprocessing_children_record(run_path: Path, record: Record) -> None:
    record("""
import multiprocessing as mp
def f(i):
    with rltrace.span("reward", items=i): return i
with mp.get_context("fork").Pool(2) as pool: pool.map(f, range(20))
""")
    found = rows(run_path, "SELECT items FROM spans ORDER BY 1")
    assert found == [(i,) for i in range(20)]


def test_a_full_disk_ends_recording_and_not_the_job(run_path: Path, record: Record) -> None:
    """A file-size limit makes every allocation fail as a full disk does; test_disk_full in
    tests/run does it with a real full tmpfs."""
    done = record("""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
for i in range(100_000):
    with rltrace.span("rollout"): pass
    rltrace.counter("n", i)
print("the job's result")
""")
    assert done.stdout == "the job's result\n"
    assert len(done.stderr.splitlines()) == 1
    assert "recording stopped" in done.stderr
    (problem,) = rltrace.open_run(run_path).problems
    assert problem["what"] == "recording-stopped"


def test_a_run_directory_that_is_gone_is_said_once(tmp_path: Path, record: Record) -> None:
    missing = str(tmp_path / "gone")
    done = record(
        f"recorder.stop(); print(recorder.start({missing!r}))\nwith rltrace.span('train'): pass"
    )
    assert done.stdout == "None\n"
    assert len(done.stderr.splitlines()) == 1


def test_deleting_the_run_under_a_job_harms_nothing(run_path: Path, record: Record) -> None:
    done = record("""
import shutil
with rltrace.span("train"): pass
shutil.rmtree(os.environ["RECORD_INTO"])
for i in range(3000):
    with rltrace.span("train", f"name{i % 50}"): pass
print("fine")
""")
    assert done.stdout == "fine\n"
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into a read-only directory")
def test_a_read_only_run_is_said_once(run_path: Path, record: Record) -> None:
    for folder in run_path.iterdir():
        folder.chmod(0o500)
    done = record("with rltrace.span('train'): pass\nprint('fine')")
    assert done.stdout == "fine\n"
    assert len(done.stderr.splitlines()) == 1


def test_names_without_bound_do_not_grow_the_run_without_bound(
    run_path: Path, record: Record
) -> None:
    record("""
recorder.MOST_NAMES = 100
for i in range(1000):
    with rltrace.span("rollout", f"request {i}"): pass
""")
    ((names,),) = rows(run_path, "SELECT count(DISTINCT name) FROM spans")
    assert names == 101
    run = rltrace.open_run(run_path)
    assert [p["what"] for p in run.problems] == ["too-many-names"]


def test_strange_names_come_back_as_they_were(run_path: Path, record: Record) -> None:
    names = ["τ_R", 'a "quoted" one', "new\nline", "tab\t\\", "null\0", "\x7f", "🦉"]
    record(f"""
for name in {names!r}:
    with rltrace.span("other", name): pass
with rltrace.span("other", "lone \\ud800"): pass
""")
    found = [name for (name,) in rows(run_path, "SELECT name FROM spans ORDER BY start_ns")]
    assert found[: len(names)] == names
    assert len(found) == len(names) + 1


def test_a_process_says_what_it_is(run_path: Path, record: Record) -> None:
    record("recorder.active().describe(role='rollout', rank=3, versions={'torch': '2.13'})")
    (process,) = rltrace.open_run(run_path).processes
    assert (process.role, process.rank) == ("rollout", 3)
    assert process.facts["versions"] == {"torch": "2.13"}
    assert process.facts["node"]


def test_two_processes_under_one_pid_have_files_of_their_own(
    run_path: Path, record: Record
) -> None:
    record("""
with rltrace.span("rollout"): pass
if "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "1"
    os.execv(sys.executable, sys.orig_argv)
""")
    found = rows(run_path, "SELECT count(*), count(DISTINCT pid), count(DISTINCT who) FROM spans")
    assert found == [(2, 1, 2)]


def test_a_signal_handler_that_records_cannot_deadlock(run_path: Path, record: Record) -> None:
    record("""
import signal
def handler(*_):
    with rltrace.span("other", "in a handler"): pass
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for _ in range(200_000):
    with rltrace.span("rollout"): pass
signal.setitimer(signal.ITIMER_REAL, 0)
""")
    ((count,),) = rows(run_path, "SELECT count(*) FROM spans WHERE stage = 'rollout'")
    assert count == 200_000


def test_a_signal_that_comes_while_another_is_told_of_costs_no_row(
    run_path: Path, record: Record
) -> None:
    """A handler records while a batch is begun, which cannot be; as that is about to be told of,
    what tells it being half imported, the next signal comes."""
    record("""
import builtins, signal
from rltrace.testing.inside.trace import segment
def handler(*_):
    with rltrace.span("other", "in a handler"): pass
signal.signal(signal.SIGUSR1, handler)
write, load = segment._write_all, builtins.__import__
def interrupted_write(*arguments):
    signal.raise_signal(signal.SIGUSR1)
    write(*arguments)
def interrupted_load(name, scope=None, *arguments):
    if scope is not None and scope["__name__"] == "rltrace.hooks.telling":
        signal.raise_signal(signal.SIGUSR1)
    return load(name, scope, *arguments)
segment._write_all, builtins.__import__ = interrupted_write, interrupted_load
for _ in range(1000):
    with rltrace.span("rollout"): pass
""")
    assert rows(run_path, "SELECT count(*) FROM spans WHERE stage = 'rollout'") == [(1000,)]
    told = [(problem["what"], problem["target"]) for problem in rltrace.open_run(run_path).problems]
    assert told == [("not-recorded", "RuntimeError")]


def test_importing_rltrace_loads_the_standard_library_only(run_path: Path, record: Record) -> None:
    loaded = record("""
print(*sorted({m.split(".")[0] for m in sys.modules} - set(sys.stdlib_module_names)))
heavy = {"typing", "enum", "dataclasses", "json", "inspect", "ctypes", "subprocess", "hashlib"}
print(*sorted(heavy & set(sys.modules)))
""").stdout.splitlines()
    assert "rltrace" in loaded[0].split()
    assert not {"numpy", "pyarrow", "duckdb", "click", "rich", "torch"} & set(loaded[0].split())
    assert loaded[1] == ""


def test_recorded_files_are_read_by_name_only(run_path: Path, record: Record) -> None:
    record("with rltrace.span('train'): pass")
    (file,) = (run_path / "process").iterdir()
    facts = json.loads(file.read_text())
    assert facts["who"] == file.stem
    assert (run_path / "spans" / f"{facts['who']}.0.arrows").exists()


def test_a_second_run_in_one_directory_is_refused(run_path: Path) -> None:
    with pytest.raises(FileExistsError):
        create_run(str(run_path), [], {}, "test")


def test_a_real_full_disk(tmp_path: Path, record: Record) -> None:
    """A tmpfs of 256 KiB, filled by the trace itself."""
    mount = tmp_path / "small"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a tmpfs")
    try:
        path = mount / "run"
        create_run(str(path), ["x"], {}, "test")
        done = record(
            """
total = 0
for i in range(50_000):
    with rltrace.span("rollout", f"name {i % 3000}"): total += i
print(total)
""",
            RECORD_INTO=str(path),
        )
        assert done.stdout == f"{sum(range(50_000))}\n"
        assert len(done.stderr.splitlines()) == 1
        assert rows(path, "SELECT count(*) > 100 FROM spans") == [(True,)]
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_name_given_while_another_is_written_down_gets_an_id_of_its_own(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(str(run_path))
    write = recording.append_line

    def interrupted(path: str, line: object) -> None:
        monkeypatch.setattr(recording, "append_line", write)
        recorder.name("in a signal handler")
        write(path, line)

    monkeypatch.setattr(recording, "append_line", interrupted)
    texts = ["in the loop", "in a signal handler"]
    assert [recorder.text(recorder.name(text)) for text in texts] == texts
    lines = (run_path / "names" / f"{recorder.who}.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)[1] for line in lines) == sorted(texts)
