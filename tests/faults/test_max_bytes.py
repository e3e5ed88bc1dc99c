"""`rltrace wrap --max-bytes`: the oldest details go, sums of steps stay, every row is counted."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.analysis.summary import summarize
from rltrace.cli.options import narrow_to
from rltrace.report import units
from rltrace.report.damage_lines import dropped_lines
from rltrace.run.capping import Cap
from rltrace.run.newest_step import NewestStep
from rltrace.run.shipping.by_hand import ship
from rltrace.run.size_option import segment_bytes, size_of
from rltrace.trace.clock import node_id
from rltrace.trace.errors import RltraceError
from rltrace.trace.parquet import compact, delete_segments
from rltrace.trace.run_dir import update_run_json, write_json
from tests.cli.conftest import invoke
from tests.conftest import Record
from tests.faults.capped import (
    ALL,
    KILL_THE_AGENT,
    LOOP,
    OF_STEPS,
    SPANS,
    STEPS,
    UNTIL_SMALL,
    all_rows,
    counted,
    segments_bytes,
    spans,
)
from tests.hooks.conftest import wrapped


def test_each_row_is_there_or_counted(run_path: Path, record: Record) -> None:
    record(LOOP)
    before, whole = segments_bytes(run_path), spans(run_path)
    assert whole == STEPS * (SPANS + 2)
    all_before, counted_before = all_rows(run_path), counted(run_path)
    Cap(str(run_path), node_id(), before).keep()
    assert rltrace.open_run(run_path).dropped is None  # it is small enough
    Cap(str(run_path), node_id(), before // 2).keep()
    after = segments_bytes(run_path)
    assert after <= before // 2
    run = rltrace.open_run(run_path)
    dropped = run.dropped
    assert dropped is not None
    assert dropped.bytes == before - after
    on_disk = whole - dropped.rows["spans"]
    assert 0 < spans(run_path) <= on_disk  # what is left of a step that is not whole is not shown
    assert dropped.hidden.get("spans", 0) == on_disk - spans(run_path)
    assert dropped.hidden["uses"] > 0
    assert counted(run_path) == counted_before
    # Sums of steps: of those that are gone, and with what is on the disk, of all.
    sums = dict(run.sql("SELECT step, rows FROM dropped_steps WHERE what = 'rollout'").fetchall())
    assert dropped.step_numbers is not None
    first, last = dropped.step_numbers
    assert first == 0
    assert all(sums[step] == SPANS for step in range(first, last))
    assert all_rows(run_path) == all_before
    # Steps that are shown are whole, and what is said is of them.
    shown = run.sql(OF_STEPS).fetchall()
    assert shown == [(step, SPANS, 1) for step in range(last + 1, STEPS)]
    found = summarize(run, predict=False)
    assert found.steps.complete == len(shown)
    assert (found.run.start_ns, found.run.shown_ns) == (run.meta["start_real_ns"], run.begins_ns)
    (said,) = dropped_lines(found.coverage.dropped)
    assert f"the oldest details of steps 0 to {last} were dropped" in said
    hidden = sum(dropped.hidden.values())
    assert f"of that time {hidden:,} rows on disk are not shown" in said


def test_of_steps_that_were_dropped_the_sums_are_pointed_to(run_path: Path, record: Record) -> None:
    record(LOOP)
    Cap(str(run_path), node_id(), segments_bytes(run_path) // 2).keep()
    dropped = rltrace.open_run(run_path).dropped
    assert dropped is not None
    assert dropped.step_numbers is not None
    last = dropped.step_numbers[1]
    with pytest.raises(RltraceError) as refused:
        narrow_to(rltrace.open_run(run_path), f"3..{last}", None)
    assert f"it has {last + 1} to {STEPS - 1}; the details of 0 to {last} were" in str(
        refused.value
    )
    assert 'SELECT * FROM dropped_steps"' in str(refused.value)
    with pytest.raises(RltraceError, match=rf"it has {last + 1} to {STEPS - 1}$"):
        narrow_to(rltrace.open_run(run_path), f"{STEPS}..", None)
    run = rltrace.open_run(run_path)
    narrow_to(run, f"{last}..{last + 1}", None)  # the sums are of all of the run
    assert run.sql("SELECT min(step), max(step) FROM steps").fetchall() == [(last + 1, last + 1)]
    assert run.dropped == dropped


def test_where_no_step_is_left_it_is_not_said_that_none_was_recorded(
    run_path: Path, record: Record
) -> None:
    record(LOOP)
    Cap(str(run_path), node_id(), 0).keep()
    verdict = summarize(rltrace.open_run(run_path)).verdict
    assert "were dropped to keep the run small" in verdict.because


AT_ONCE = """
import os
child = os.fork()
for n in range(200 * (child > 0)):
    with rltrace.step(n):
        with rltrace.span("train"): pass
for n in range(300 * (child == 0)):
    with rltrace.span("rollout"): pass
if child:
    os.waitpid(child, 0)
else:
    os._exit(0)
"""
"""Two processes, each with a segment of spans to which nothing was added, so that both are last."""


def test_as_a_job_ends_its_newest_whole_step_stays(run_path: Path, record: Record) -> None:
    """However small it is to be: all files may go then, of all processes."""
    record(LOOP)
    before = all_rows(run_path)
    Cap(str(run_path), node_id(), 0).keep(at_end=True)
    run = rltrace.open_run(run_path)
    assert run.dropped is not None
    shown = run.sql(OF_STEPS).fetchall()
    assert shown
    assert shown == [(step, SPANS, 1) for step in range(STEPS - len(shown), STEPS)]
    assert all_rows(run_path) == before
    assert summarize(run, predict=False).steps.complete == len(shown)


def test_what_was_written_last_is_kept_for_the_newest_step(run_path: Path, record: Record) -> None:
    """Of processes that took part in it, also while others go on."""
    record(AT_ONCE)
    Cap(str(run_path), node_id(), 0).keep()
    assert rltrace.open_run(run_path).sql("SELECT max(step) FROM steps").fetchall() == [(199,)]


def test_short_processes_go_with_the_steps_they_were_of(run_path: Path, record: Record) -> None:
    """Each has a last segment only; but for those that came after the newest step began, while the
    run goes on, that is no reason to keep it."""
    step = "with rltrace.step({}):\n    with rltrace.span('train'): pass"
    record(step.format(0))
    for _ in range(3):
        record("with rltrace.span('rollout'): pass")
    record(step.format(1))
    Cap(str(run_path), node_id(), 0).keep(at_end=True)
    assert len(list((run_path / "spans").glob("*.arrows"))) == 1
    assert spans(run_path) == 2
    record("with rltrace.span('rollout'): pass")
    Cap(str(run_path), node_id(), 0).keep(at_end=True)
    assert spans(run_path) == 3  # of the time after it
    Cap(str(run_path), node_id(), 0).keep()
    assert spans(run_path) == 0


def test_the_newest_step_is_of_all_nodes(run_path: Path, record: Record) -> None:
    """On the clock of the one that asks; of ranks the first that began it, not a step of the same
    number of a job before."""
    record("with rltrace.step(1): pass")
    record(
        "first = rltrace.step(1)\nfirst.__enter__()\n"
        "import os\nif os.fork() == 0:\n    with rltrace.step(1): pass\n    os._exit(0)\n"
        "os.wait()\nfirst.__exit__(None, None, None)"
    )
    run = rltrace.open_run(run_path)
    _, (began_ns,), _ = run.sql("SELECT start_ns FROM spans ORDER BY start_ns").fetchall()
    files = [(path, True) for path in (run_path / "spans").glob("*.arrows")]
    newest = NewestStep(run_path, node_id())
    clock = run.clock_of(node_id())
    assert clock is not None
    base_ns = clock.base_ns
    assert newest.began_ns(files) == began_ns - base_ns
    assert newest.began_ns([]) is None
    # The same steps, on a node whose clock is a day ahead.
    day_ns = 86_400 * 10**9
    for path in (run_path / "process").glob("*.json"):
        write_json(str(path), {**json.loads(path.read_text()), "node": "other"})
    for node, ahead_ns in ((node_id(), 0), ("other", day_ns)):
        line = {"kind": "pair", "monotonic_ns": 1 + ahead_ns, "real_ns": 1 + base_ns}
        (run_path / "clocks" / f"{node}.jsonl").write_text(json.dumps(line) + "\n")
    assert NewestStep(run_path, node_id()).began_ns(files) == began_ns - base_ns - day_ns
    (run_path / "clocks" / "other.jsonl").unlink()
    assert NewestStep(run_path, node_id()).began_ns(files) is None


def test_again_and_again_and_compacted(run_path: Path, record: Record) -> None:
    """Of two processes, one after the other."""
    record(LOOP)
    record(LOOP)
    before, size = all_rows(run_path), segments_bytes(run_path)
    counted_before = counted(run_path)
    assert (0, "rollout", 2 * SPANS, 6 * SPANS) in before
    cap = Cap(str(run_path), node_id(), size)
    for part in (0.8, 0.5, 0.2):
        cap._max_bytes = int(part * size)
        cap.keep()
        assert all_rows(run_path) == before
        assert counted(run_path) == counted_before
    dropped, shown = rltrace.open_run(run_path).dropped, spans(run_path)
    assert dropped is not None
    assert dropped.hidden
    compact(rltrace.open_run(run_path))
    assert rltrace.open_run(run_path).dropped == dropped
    compact(rltrace.open_run(run_path))
    delete_segments(run_path)
    again = rltrace.open_run(run_path)
    assert spans(run_path) == shown
    assert again.dropped == dropped
    assert all_rows(run_path) == before


def test_a_file_whose_agent_was_killed_before_it_was_deleted_is_counted_once(
    run_path: Path, record: Record
) -> None:
    record(LOOP)
    before, size = all_rows(run_path), segments_bytes(run_path)
    whole = run_path.with_name("whole")
    shutil.copytree(run_path, whole)
    Cap(str(run_path), node_id(), size // 2).keep()
    dropped = rltrace.open_run(run_path).dropped
    assert dropped is not None
    for file in dropped.files:
        shutil.copy(whole / file, run_path / file)
    assert rltrace.open_run(run_path).dropped == dropped
    assert all_rows(run_path) == before
    Cap(str(run_path), node_id(), size // 2).keep()  # the next agent of the node
    again = rltrace.open_run(run_path).dropped
    assert again is not None
    assert again.files >= dropped.files
    assert not any((run_path / file).exists() for file in dropped.files)
    assert all_rows(run_path) == before


def test_what_a_run_lasted_is_of_all_of_it_and_how_much_is_shown_is_said(
    run_path: Path, record: Record
) -> None:
    record(LOOP)
    told = json.loads((run_path / "run.json").read_text())
    ended_ns = told["start_real_ns"] + 3600 * 10**9
    update_run_json(str(run_path), settings={"max_bytes": 1}, end_real_ns=ended_ns, exit_code=0)
    Cap(str(run_path), node_id(), segments_bytes(run_path) // 2).keep()
    dropped = rltrace.open_run(run_path).dropped
    assert dropped is not None
    shown_s = (ended_ns - dropped.until_ns) / 1e9
    assert shown_s < 3600
    assert json.loads(invoke("ls", run_path.parent, "--json").output)[0]["seconds"] == 3600
    info = json.loads(invoke("info", run_path, "--json").output)
    assert (info["seconds"], info["shown_s"]) == (3600, shown_s)
    of_run = json.loads(invoke("report", run_path, "--json").output)["run"]
    assert (of_run["lasted_s"], of_run["shown_s"]) == (3600, shown_s)
    for command in ("info", "report"):
        output = " ".join(invoke(command, run_path).output.replace("│", " ").split())
        assert f"lasted {units.lasted(3600, shown_s)}" in output


def test_what_is_dropped_while_the_run_is_read_is_of_no_table(
    run_path: Path, record: Record
) -> None:
    """A reader may hold the run for long, and reads a table when it is first asked for."""
    record(LOOP)
    update_run_json(str(run_path), settings={"max_bytes": 1})
    before, size = all_rows(run_path), segments_bytes(run_path)
    run = rltrace.open_run(run_path)
    assert run.dropped is None
    whole = run.sql("SELECT count(*) FROM uses").fetchall()
    assert whole == [(STEPS,)]
    Cap(str(run_path), node_id(), size // 2).keep()
    steps = run.sql(OF_STEPS).fetchall()  # read only now
    assert run.dropped is not None
    first = steps[0][0]
    assert first > 0
    assert steps == [(step, SPANS, 1) for step in range(first, STEPS)]
    assert run.begins_ns == run.dropped.until_ns
    ((use,),) = run.sql("SELECT min(step) FROM uses").fetchall()  # which had been read before
    assert use in (first - 1, first)
    assert run.sql(ALL).fetchall() == before
    assert run.problems == []
    Cap(str(run_path), node_id(), size // 4).keep()  # more of what this reader has
    assert all_rows(run_path) == before
    assert run.sql(ALL).fetchall() == before


def test_of_a_run_that_is_shipped_only_what_came_through_and_is_complete_is_dropped(
    run_path: Path, record: Record
) -> None:
    """A span that goes on is stored into a file that is no more, and its end would be lost."""
    code = f"""
outer = recorder.active().begin(recorder.active().name("outer"), 13)
{LOOP}
import time
from rltrace.run.capping import Cap
from rltrace.run.newest_step import NewestStep
from rltrace.trace.clock import node_id
run = os.environ["RECORD_INTO"]
time.sleep(1.2)  # what ended so long ago is complete
asked = []
def is_shipped(path):
    asked.append(path)
    return answer
def files():
    return sum(len(os.listdir(f"{{run}}/{{table}}")) for table in ("spans", "uses"))
cap = Cap(run, node_id(), 1, is_shipped, "the-name")
before, answer = files(), False
cap.keep()
print(files() == before, len(asked))
answer = True
cap.keep()
print(files() == 3, len(asked) == before - 2)
outer.end()
"""
    done = record(code)
    assert done.stdout == "True 1\nTrue True\n", done.stderr
    run = rltrace.open_run(run_path)
    assert run.dropped is not None
    assert run.dropped.is_shipped
    assert [file.name for file in (run_path / "dropped").iterdir()] == ["the-name.jsonl"]
    (said,) = dropped_lines(run.dropped)
    assert "and are at its URL" in said
    with pytest.raises(RltraceError, match="only: copy that folder"):
        ship(run_path, "file:///elsewhere")


def test_processes_of_another_container_are_left_alone(run_path: Path, record: Record) -> None:
    """Its pids say nothing here, where the clock is the same: it may be writing."""
    record(LOOP)
    before = segments_bytes(run_path)
    for file in (run_path / "process").iterdir():
        write_json(str(file), {**json.loads(file.read_text()), "host": "another-container"})
    Cap(str(run_path), node_id(), before // 2).keep()
    assert segments_bytes(run_path) == before


def test_what_somebody_writes_stays(run_path: Path, record: Record) -> None:
    """The last segment of each table of a living process; and of another node everything."""
    done = record(
        LOOP
        + """
from pathlib import Path
from rltrace.run.capping import Cap
from rltrace.run.newest_step import NewestStep
from rltrace.trace.clock import node_id
run = os.environ["RECORD_INTO"]
Cap(run, "another-node", 1).keep()
print(len(list(Path(run, "spans").glob("*.arrows"))) > 5)
Cap(run, node_id(), 1).keep()
print(len(list(Path(run, "spans").glob("*.arrows"))), len(list(Path(run, "uses").glob("*.arrows"))))
with rltrace.step(1000), rltrace.span("train"): pass
"""
    )
    assert done.stdout == "True\n1 1\n", done.stderr
    found = rltrace.open_run(run_path).sql("SELECT count(*) FROM spans WHERE step = 1000")
    assert found.fetchall() == [(2,)]


@pytest.mark.parametrize("before", ["", KILL_THE_AGENT], ids=["calm", "agent killed"])
def test_a_job_under_a_cap_is_what_it_is(tmp_path: Path, before: str) -> None:
    program = before + LOOP.partition("SEGMENT_BYTES = 64 << 10")[2]
    (tmp_path / "job.py").write_text(f"import rltrace\n{program}\n{UNTIL_SMALL}\nprint(5)")
    cap = ("--max-bytes", "1 MB")
    done = wrapped(tmp_path, "--out", "run", *cap, "--", sys.executable, "job.py")
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
    run = rltrace.open_run(tmp_path / "run")
    assert run.meta["settings"]["max_bytes"] == 10**6
    assert segments_bytes(tmp_path / "run") < 10**6
    assert run.dropped is not None
    assert all_rows(tmp_path / "run") == [
        row
        for step in range(STEPS)
        for row in (
            (step, "rollout", SPANS, 3 * SPANS),
            *((step, "step", 1, 0), (step, "train", 1, 7), (step, "trained", 1, 11)),
        )
    ]


@pytest.mark.parametrize(
    ("text", "size"),
    [("20GB", 20 * 10**9), ("1.5 GiB", 3 << 29), ("500m", 5 * 10**8), ("1000000", 10**6)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_of(text) == size
    assert 128 << 10 <= segment_bytes(size) <= 64 << 20


@pytest.mark.parametrize("text", ["", "many", "-5GB", "10", "1e9", "nan", "5 PB"])
def test_what_is_no_size_is_wrong_usage(text: str) -> None:
    with pytest.raises(RltraceError):
        size_of(text)


def test_lines_of_a_stranger_are_skipped(run_path: Path) -> None:
    whole = {"table": "spans", "rows": 3, "bytes": 5, "until_ns": 7, "spans": [[1, 2, 3]]}
    lines = [
        *(5, None, [], {}, {**whole, "steps": 3}, {**whole, "steps": [[1, "train", 1]]}),
        {**whole, "steps": [[1, "train", 1, float("inf"), 2]]},
        {**whole, "steps": [["1", "train", 1, 1, 2]]},
        {**whole, "steps": [], "spans": [[1e300, 2, 3]]},
        {**whole, "rows": 1 << 80, "steps": []},
        {**whole, "steps": [[1, "train", 2, 0.5, 9], [1, "step", 1, 0.5, 0]]},
    ]
    (run_path / "dropped").mkdir()
    text = "\n".join(["no json", *map(json.dumps, lines)])
    (run_path / "dropped" / "node.jsonl").write_text(text)
    dropped = rltrace.open_run(run_path).dropped
    assert dropped is not None
    assert dropped.rows == {"spans": 3}
    assert [(total.step, total.what, total.rows) for total in dropped.steps] == [
        (1, "step", 1),
        (1, "train", 2),
    ]
