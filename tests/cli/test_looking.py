"""What is said of runs, of some of their steps (`--steps`, `--last`), and which run is meant."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.make_trace import Workload, make
from rltrace.testing.handmade_runs import process, run_of, turns
from rltrace.testing.inside.report import units
from rltrace.testing.inside.trace import (
    CANNOT_TELL,
    WRONG_USAGE,
    Stage,
    create_run,
    read_run_json,
    update_run_json,
)
from tests.cli.conftest import invoke, typed


def test_commands_default_to_the_run_that_began_last(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rltrace-runs"
    folder.mkdir()
    run.rename(folder / "by-name-before-all-others")
    for name, started in (("20200101-000000-old", 5), ("z-older", 3), ("zz-broken", None)):
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(json.dumps({"start_real_ns": started}))
    monkeypatch.chdir(tmp_path)
    result = invoke("query", "--csv", "SELECT count(*) AS n FROM steps")
    assert result.output == "n\n5\n"
    listed = json.loads(invoke("ls", "--json").output)
    names = ["zz-broken", "z-older", "20200101-000000-old", "by-name-before-all-others"]
    assert [Path(entry["path"]).name for entry in listed] == names
    assert "unreadable" in listed[0]["problem"]


def test_info_bears_a_run_file_of_other_types(run: Path) -> None:
    told = {"id": 5, "command": 3, "start_real_ns": "x", "exit_code": "y", "schema_version": 1}
    (run / "run.json").write_text(json.dumps(told))
    assert invoke("info", run).exit_code == 0


def test_without_any_run_the_way_to_one_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("report")
    assert result.exit_code == 4
    assert "rltrace wrap -- " in result.output
    assert invoke("ls").exit_code == 0


def test_a_run_is_found_by_its_name_and_by_what_its_name_alone_begins_with(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest is one that has anything to tell."""
    runs = tmp_path / "here" / "rltrace-runs"
    for name in ("20260101-a", "20260101-ab", "20260102-c"):
        shutil.copytree(run, runs / name)
    create_run(str(runs / "20270101-nothing"), ["true"], {}, "0")
    monkeypatch.chdir(tmp_path / "here")

    def path(*name: str) -> str:
        return Path(json.loads(invoke("info", "--json", *name).output)["path"]).name

    assert path("20260101-a") == "20260101-a"
    assert path("20260102") == "20260102-c"
    assert path("2027") == "20270101-nothing"
    assert path() in ("20260101-a", "20260101-ab", "20260102-c")
    several = invoke("info", "20260101")
    assert several.exit_code == 2
    assert "20260101-a, 20260101-ab" in several.output
    assert invoke("info", "x" * 5000).exit_code == 4


def test_info_says_who_a_stuck_job_waited_for(run: Path) -> None:
    since_ns = 1_796_000_000_000_000_000
    culprit = {"kind": "dead", "who": "x", "role": "", "rank": 0, "host": "h", "pid": 7,
               "says": "rollout 3 has died", "place": ""}  # fmt: skip
    stuck = {"step": 3, "since_ns": since_ns, "seen_ns": since_ns, "certainty": 0, "usual_s": 1.0,
             "culprit": culprit, "waiting": [], "gpus": [], "also": []}  # fmt: skip
    told = {"what": "stuck", "target": str(since_ns), "detail": "it waits", "stuck": stuck}
    (run / "problems" / "node-1.jsonl").write_text(json.dumps(told))
    shown = invoke("info", run).output
    assert "! stuck rollout 3 has died" in shown
    assert str(since_ns) not in shown


def test_info_counts_what_is_there(run: Path) -> None:
    found = json.loads(invoke("info", "--json", run).output)
    assert found["rows"]["spans"] == 15
    assert found["rows"]["trajectories"] == 5
    assert found["nodes"] == 1
    assert len(found["processes"]) == 1


def test_info_tells_the_size_of_rows_whether_they_are_segments_or_compacted(run: Path) -> None:
    def sizes() -> tuple[int, int, int]:
        found = json.loads(invoke("info", "--json", run).output)
        return found["bytes_on_disk"], found["segment_bytes"], found["parquet_bytes"]

    def on_disk(suffix: str) -> int:
        return sum(path.stat().st_size for path in run.rglob(f"*.{suffix}"))

    segments = on_disk("arrows")
    assert sizes() == (segments, segments, 0)
    assert invoke("compact", run).exit_code == 0
    (run / "parquet/carried").mkdir()  # as of a run with parts over whose ends something went on
    shutil.copy(run / "parquet/names.parquet", run / "parquet/carried/spans-0000.parquet")
    parquet = on_disk("parquet") + (run / "parquet" / "manifest.json").stat().st_size
    assert sizes() == (segments + parquet, segments, parquet)
    said = invoke("info", run).output
    assert all(units.size(n) in said for n in (segments, parquet, segments + parquet))
    assert invoke("compact", run, "--delete-segments").exit_code == 0
    assert sizes() == (parquet, 0, parquet)
    assert f"{units.size(parquet)} on disk" in invoke("info", run).output


def test_one_length_of_a_run_is_told_everywhere(run: Path) -> None:
    """What is read of the node after the command has ended does not count."""
    began_ns = read_run_json(str(run))["start_real_ns"]
    update_run_json(str(run), end_real_ns=began_ns + 12_340_000_000, exit_code=0)
    assert json.loads(invoke("ls", "--json", run.parent).output)[0]["lasted_s"] == 12.34
    assert json.loads(invoke("info", "--json", run).output)["lasted_s"] == 12.34
    assert json.loads(invoke("report", "--json", run).output)["run"]["lasted_s"] == 12.34
    for command in (("ls", run.parent), ("info", run), ("report", run)):
        assert "12.3 s" in invoke(*command).output


def test_a_run_that_cannot_be_read_is_listed_as_such(run: Path) -> None:
    (run / "run.json").write_text('{"id": ')
    (listed,) = json.loads(invoke("ls", "--json", run.parent).output)
    assert (listed["start_ns"], listed["lasted_s"]) == (None, None)
    _, line = invoke("ls", run.parent).output.splitlines()
    assert "1970" not in line
    assert "run.json" in line


@pytest.mark.parametrize("moves", [(), ("--lever", "train_speed=2")])
@pytest.mark.parametrize("steps", [1, 2])
def test_of_too_few_steps_nothing_is_predicted(
    tmp_path: Path, steps: int, moves: tuple[str, ...]
) -> None:
    few = run_of(tmp_path, process("driver", *turns(*[6.0] * steps))).path
    result = invoke("whatif", few, *moves)
    (line,) = result.output.splitlines()
    assert result.exit_code == CANNOT_TELL
    assert f"{steps} steady step" in line


def test_one_frame_is_printed_where_there_is_no_terminal(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make(run, Workload(steps=4, prompts=4, group=2))
    plain = invoke("top", run).output
    assert plain == invoke("top", run, "--once").output
    assert "4 steps done" in plain
    assert "\x1b" not in plain
    shown = json.loads(invoke("top", run, "--json").output)
    assert (shown["schema"], shown["schema_version"]) == ("rltrace-live", 2)
    assert shown["job"]["state"] == "ended"
    assert shown["totals"]["steps"] == 4
    assert {row["stage"] for row in shown["window"]["stages"]} >= {"rollout", "train", "sync"}


def without_steps(folder: Path) -> Path:
    """A run in which nobody said what a step is."""
    spans = [(Stage.ROLLOUT, 0, 5), (Stage.TRAIN, 5, 9)]
    return run_of(folder / "stepless", process("learner", *spans)).path


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--steps", "2"], [2]),
        (["--steps", "1..3"], [1, 2, 3]),
        (["--steps", "3.."], [3, 4]),
        (["--steps", "..1"], [0, 1]),
        (["--steps", "4..900"], [4]),
        (["--last", "2"], [3, 4]),
        (["--last", "900"], [0, 1, 2, 3, 4]),
        ([], [0, 1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("compacted", [False, True])
def test_which_steps_there_are(
    small_run: Path, compacted_run: Path, options: list[str], expected: list[int], compacted: bool
) -> None:
    run = compacted_run if compacted else small_run
    done = invoke("query", run, *options, "SELECT step FROM steps ORDER BY step", "--json")
    assert [row["step"] for row in json.loads(done.stdout)] == expected


def test_each_view_is_of_these_steps(run: Path, tmp_path: Path) -> None:
    report = json.loads(invoke("report", run, "--steps", "1..2", "--json").stdout)
    assert [one["step"] for one in report["steps"]["times"]] == [1, 2]
    assert report["run"]["some_steps_only"]
    assert "2 steps (1 to 2, " in invoke("report", run, "--steps", "1..2").output
    slices = {}
    for options in ((), ("--steps", "1..2")):
        done = invoke("timeline", run, "-o", tmp_path / "t.pftrace", "--json", *options)
        slices[options] = json.loads(done.stdout)["slices"]
    assert 0 < slices["--steps", "1..2"] < slices[()]


OF_STEPS = [
    "report RUN",
    "query 'SELECT 1' RUN",
    "timeline RUN -o OUT",
    "whatif RUN",
    "whatif RUN --lever placement=async",
]
NEED_STEPS = [
    "compare RUN RUN",
    "gate RUN --max step=9",
    "baseline RUN -o OUT",
    "whatif RUN",
    "whatif RUN --lever placement=async",
    "plan --from-run RUN",
]


@pytest.mark.parametrize("line", OF_STEPS)
def test_steps_that_a_run_does_not_have_are_wrong_usage(
    small_run: Path, tmp_path: Path, line: str
) -> None:
    for run in (small_run, without_steps(tmp_path)):
        done = typed(f"{line} --steps 7..8", RUN=run, OUT=tmp_path / "out")
        assert done.exit_code == WRONG_USAGE, done.output
        assert len(done.output.splitlines()) == 1


@pytest.mark.parametrize("line", [*NEED_STEPS, *(f"{line} --last 2" for line in OF_STEPS)])
def test_a_run_without_a_complete_step_cannot_tell(tmp_path: Path, line: str) -> None:
    done = typed(line, RUN=without_steps(tmp_path), OUT=tmp_path / "out")
    assert done.exit_code == CANNOT_TELL, done.output
    assert len(done.output.splitlines()) == 1
    assert not (tmp_path / "out").exists()
