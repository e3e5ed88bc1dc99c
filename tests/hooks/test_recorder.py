"""The recorder under what happens to processes: forks, full disks, many names, signals; and storing
token ids: what is stored, by whom, and what is not."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import threading
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rltrace
from rltrace.hooks import recorder as recording
from rltrace.hooks.recorder import Recorder
from rltrace.testing.inside.hooks import identify
from tests.conftest import Record
from tests.hooks.conftest import Rows, found_in


def test_a_fork_in_the_middle_of_a_span_leaves_the_parents_rows_alone(
    run_path: Path, record: Record, rows: Rows
) -> None:
    """And a child that records nothing leaves nothing."""
    record("""
import time
recorder.active().describe(role="learner", rank=3, versions={"torch": "2.13"})
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
if os.fork() == 0: os._exit(0)
os.wait()
""")
    of_process = "SELECT stage, step, items FROM spans WHERE role {} ORDER BY start_ns"
    of_learner = [("step", 3, None), ("rollout", 3, 1), ("train", 3, 3)]
    assert rows(of_process.format("= 'learner'")) == of_learner
    assert rows(of_process.format("IS NULL")) == [("reward", 3, 2), ("step", 77, None)]
    (lasted_s,) = rows("SELECT (end_ns - start_ns) / 1e9 FROM spans WHERE stage = 'rollout'")
    assert lasted_s >= 0.05  # ended by the parent, not by its child
    learner, child = rltrace.open_run(run_path).processes
    assert (learner.role, learner.rank, child.role) == ("learner", 3, None)
    assert learner.facts["versions"] == {"torch": "2.13"}
    assert learner.facts["node"]
    assert child.facts["forked_from"] == learner.who


def test_forking_from_threads_that_record_never_hangs(record: Record, rows: Rows) -> None:
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
    assert rows("SELECT count(*) FROM spans WHERE stage = 'reward'") == [10_000]


def test_a_full_disk_ends_recording_and_not_the_job(run_path: Path, record: Record) -> None:
    """A file-size limit makes every allocation fail as a full disk does; tests/faults has one."""
    done = record("""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
for i in range(100_000):
    with rltrace.span("rollout", f"name {i % 3000}"): pass
    rltrace.counter("n", i)
print("the job's result")
""")
    assert done.stdout == "the job's result\n"
    assert len(done.stderr.splitlines()) == 1
    assert "recording stopped" in done.stderr
    (problem,) = rltrace.open_run(run_path).problems
    assert problem["what"] == "recording-stopped"


def test_what_cannot_be_stored_at_once_costs_its_rows_only(run_path: Path, record: Record) -> None:
    done = record("""
import resource
recorder = recorder.active()
for n in (2, 3):
    print(recorder.rows("uses", 2, {"time_ns": 5, "trajectory": [7, 8], "step": n * [1]}))
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
print(recorder.rows("uses", 100_000, {"time_ns": 6, "trajectory": range(100_000)}))
""")
    assert done.stdout.splitlines()[1:] == ["None", "None"]
    run = rltrace.open_run(run_path)
    assert [p["what"] for p in run.problems] == ["not-recorded", "recording-stopped"]
    kept = run.sql("select count(*), count(distinct trajectory) from uses where step is null")
    assert kept.fetchall() == [(64 + 256 - 2,) * 2], "the batches that there was space for"


def test_strange_names_come_back_and_those_without_bound_do_not_grow_the_run(
    run_path: Path, record: Record, rows: Rows
) -> None:
    names = [
        "τ_R",
        'a "quoted" one',
        "new\nline",
        "a\u2028b\x85c\x1ed",
        "tab\t\\",
        "null\0",
        "\x7f",
        "🦉",
    ]
    record(f"""
recorder.MOST_NAMES = 100
for name in {names!r}:
    with rltrace.span("other", name): pass
with rltrace.span("other", "lone \\ud800"): pass
for i in range(1000):
    with rltrace.span("rollout", f"request {{i}}"): pass
""")
    found = rows("SELECT name FROM spans ORDER BY start_ns")
    assert found[: len(names)] == names
    assert (len(found), len(set(found))) == (len(names) + 1001, 101)
    assert [p["what"] for p in rltrace.open_run(run_path).problems] == ["too-many-names"]


def test_a_signal_that_comes_while_another_is_told_of_costs_no_row(
    run_path: Path, record: Record, rows: Rows
) -> None:
    """A handler records while a batch is begun, which cannot be; as that is about to be told of,
    what tells it being half imported, the next signal comes."""
    record("""
import builtins, signal
from rltrace.testing.inside.trace import segment
def handler(*_):
    with rltrace.span("other", "in a handler"): pass
signal.signal(signal.SIGUSR1, handler)
write, load = segment.write_all, builtins.__import__
def interrupted_write(*arguments):
    signal.raise_signal(signal.SIGUSR1)
    write(*arguments)
def interrupted_load(name, scope=None, *arguments):
    if scope is not None and scope["__name__"].endswith(".telling"):
        signal.raise_signal(signal.SIGUSR1)
    return load(name, scope, *arguments)
segment.write_all, builtins.__import__ = interrupted_write, interrupted_load
for _ in range(1000):
    with rltrace.span("rollout"): pass
""")
    assert rows("SELECT count(*) FROM spans WHERE stage = 'rollout'") == [1000]
    told = [(problem["what"], problem["target"]) for problem in rltrace.open_run(run_path).problems]
    assert told == [("not-recorded", "RuntimeError")]


def test_importing_rltrace_loads_the_standard_library_only(record: Record) -> None:
    loaded = record("""
print(*sorted({m.split(".")[0] for m in sys.modules} - set(sys.stdlib_module_names)))
heavy = {"typing", "enum", "dataclasses", "json", "inspect", "ctypes", "subprocess", "hashlib"}
heavy |= {"re", "threading"}
print(*sorted(heavy & set(sys.modules)))
""").stdout.splitlines()
    assert "rltrace" in loaded[0].split()
    assert not {"numpy", "pyarrow", "duckdb", "click", "rich", "torch"} & set(loaded[0].split())
    assert loaded[1] == ""


@pytest.mark.parametrize(
    "module", ["hooks.hook", "hooks.patch.install", "adapters.verl", "run.node.agent"]
)
def test_what_runs_beside_a_job_loads_no_package_of_others(module: str) -> None:
    program = f"import sys, rltrace.{module}; print(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"numpy", "pyarrow", "duckdb", "click", "rich", "torch"} & {*done.stdout.split()}


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


def captured(run_path: Path) -> dict[int, Any]:
    """What is read back, by sample."""
    query = "SELECT trajectory, prompt_token_ids, response_token_ids FROM captured"
    return {own_id: ids for own_id, *ids in found_in(run_path, query)}


def odd(run_path: Path) -> list[str]:
    """What could not be recorded."""
    problems = rltrace.open_run(run_path).problems
    return [p["target"] for p in problems if p["what"] == "not-recorded"]


@pytest.mark.parametrize(
    "kind",
    [list, tuple, np.array, torch.tensor, lambda ids: array("q", ids), lambda ids: range(3)],
    ids=["list", "tuple", "numpy", "torch", "array", "range"],
)
def test_ids_come_in_what_holds_whole_numbers(
    capturing: Recorder, run_path: Path, kind: Any
) -> None:
    with rltrace.trajectory("x", prompt_token_ids=kind([0, 1, 2])) as t:
        t.finish(response_token_ids=kind([0, 1, 2]))
    assert captured(run_path) == {identify("x"): [[0, 1, 2], [0, 1, 2]]}


class Hostile:
    """Raises wherever it is touched."""

    def __len__(self) -> int:
        raise SystemError


@pytest.mark.parametrize(
    "wrong",
    [
        *("text", b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), 5, 1.5, object(), Hostile()),
        *([1.5], ["a"], [[1]], {"a": 1}, [2**31], np.zeros((2, 2), int), torch.tensor(3)),
        iter([1, 2]),
    ],
    ids=lambda wrong: type(wrong).__name__,
)
def test_what_holds_no_token_ids_is_left_out_and_said(
    capturing: Recorder, run_path: Path, wrong: Any
) -> None:
    with rltrace.trajectory("x", prompt_token_ids=wrong) as t:
        t.finish("stop", response_token_ids=[4])
    assert captured(run_path) == {identify("x"): [None, [4]]}
    assert odd(run_path) == ["prompt_token_ids"]
    if hasattr(wrong, "__next__"):
        assert list(wrong) == [1, 2]  # it is the job's to go through


def test_threads_do_not_mix_what_they_store(capturing: Recorder, run_path: Path) -> None:
    def generate(thread: int) -> None:
        for number in range(60):
            ids = [thread] * (40 * number + 1)
            with rltrace.trajectory(f"{thread}/{number}", prompt_token_ids=[number]) as t:
                t.finish(response_token_ids=ids)

    threads = [threading.Thread(target=generate, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert captured(run_path) == {
        identify(f"{thread}/{number}"): [[number], [thread] * (40 * number + 1)]
        for thread in range(4)
        for number in range(60)
    }


def test_where_a_file_cannot_be_mapped_they_are_written(
    capturing: Recorder, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmapped(*_: Any, **__: Any) -> Any:
        raise OSError("no maps here")

    monkeypatch.setattr(mmap, "mmap", unmapped)
    with rltrace.trajectory("x", prompt_token_ids=range(100)) as t:
        t.finish(response_token_ids=[7])
    assert captured(run_path) == {identify("x"): [list(range(100)), [7]]}


def test_a_forked_child_has_none_of_its_parents_sample(capturing: Recorder, run_path: Path) -> None:
    t = rltrace.trajectory("parent's", prompt_token_ids=[1])
    pid = os.fork()
    if pid == 0:
        t.finish(response_token_ids=[2])
        with rltrace.trajectory("own") as own:
            own.finish(response_token_ids=[3])
        os._exit(0)
    os.waitpid(pid, 0)
    t.finish(response_token_ids=[4])
    assert captured(run_path) == {identify("parent's"): [[1], [4]], identify("own"): [None, [3]]}
    assert odd(run_path) == []


def test_the_same_id_again_is_another_sample(capturing: Recorder, run_path: Path) -> None:
    for ids in ([1, 2], [3]):
        with rltrace.trajectory("x") as t:
            t.finish(response_token_ids=ids)
    query = "SELECT response_token_ids FROM captured ORDER BY start_ns"
    assert found_in(run_path, query) == [[1, 2], [3]]
