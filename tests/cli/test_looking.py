"""`rltrace ls` and `info`: what is said of runs, and which one is meant where none is named."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from rich import filesize

from rltrace.testing.inside.trace import CANNOT_TELL, node_id, update_run_json
from rltrace.testing.made import process, run_of, turns
from tests.cli.conftest import invoke


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


def test_a_folder_that_does_not_exist_has_no_runs(tmp_path: Path) -> None:
    result = invoke("ls", tmp_path / "nowhere")
    assert result.exit_code == 4
    assert len(result.output.strip().splitlines()) == 1


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
    assert parquet > 0
    assert sizes() == (segments + parquet, segments, parquet)
    said = invoke("info", run).output
    sizes_said = f"{filesize.decimal(segments)} of segments and {filesize.decimal(parquet)}"
    assert f"{filesize.decimal(segments + parquet)} on disk ({sizes_said} of Parquet)" in said
    assert invoke("compact", run, "--delete-segments").exit_code == 0
    assert sizes() == (parquet, 0, parquet)
    assert f"{filesize.decimal(parquet)} on disk, all of it Parquet" in invoke("info", run).output


def test_one_length_of_a_run_is_told_everywhere(run: Path) -> None:
    """What is read of the node after the command has ended does not count."""
    told = json.loads((run / "run.json").read_text())
    told |= {"end_real_ns": told["start_real_ns"] + 12_340_000_000, "exit_code": 0}
    (run / "run.json").write_text(json.dumps(told))
    assert json.loads(invoke("ls", "--json", run.parent).output)[0]["seconds"] == 12.34
    assert json.loads(invoke("info", "--json", run).output)["seconds"] == 12.34
    assert json.loads(invoke("report", "--json", run).output)["run"]["lasted_s"] == 12.34
    for command in (("ls", run.parent), ("info", run), ("report", run)):
        assert "12.3 s" in invoke(*command).output
    said = invoke("report", run).output.replace("│", " ")
    assert "lasted 12.3 s" in " ".join(said.split())  # wherever lines break


def test_a_run_that_cannot_be_read_is_listed_as_such(run: Path) -> None:
    (run / "run.json").write_text('{"id": ')
    (listed,) = json.loads(invoke("ls", "--json", run.parent).output)
    assert (listed["start_real_ns"], listed["seconds"]) == (None, None)
    _, line = invoke("ls", run.parent).output.splitlines()
    assert "1970" not in line
    assert "unreadable: run.json cannot be read" in line


def test_every_run_is_one_line(run: Path) -> None:
    told = json.loads((run / "run.json").read_text())
    told["command"] = ["/a/long/way/to/python", "train.py\n\x1b[31m", "x" * 500]
    (run / "run.json").write_text(json.dumps(told))
    lines = invoke("ls", run.parent).output.splitlines()
    assert len(lines) == 2
    assert "python 'train.py\\n\\x1b[31m'" in lines[1] or "/a/long/way" in lines[1]


READERS = (
    ("report", "RUN"), ("whatif", "RUN"), ("compare", "RUN", "RUN"), ("query", "SELECT 1", "RUN"),
    ("timeline", "RUN"), ("export", "otlp", "RUN"), ("export", "prometheus", "RUN", "--once"),
    ("top", "RUN"), ("top", "RUN", "--json"), ("compact", "RUN", "--delete-segments"),
    ("gate", "RUN", "--max", "step=9"), ("baseline", "RUN", "-o", "RUN/b.json"),
    ("experiment", "RUN", "--dry-run"), ("plan", "--from-run", "RUN"),
)  # fmt: skip


def refusals(run: Path) -> set[tuple[int, str]]:
    """How the commands that read a run end, and what they say of this one."""
    ended = set()
    for words in READERS:
        result = invoke(*[word.replace("RUN", str(run)) for word in words])
        ended.add((result.exit_code, result.output))
    return ended


@pytest.fixture
def over(run: Path) -> Path:
    """A run whose end is recorded."""
    update_run_json(str(run), end_real_ns=1_800_000_000_000_000_000, exit_code=0)
    return run


def test_a_run_whose_files_are_random_bytes_is_unreadable(over: Path) -> None:
    for file in over.glob("*/*.arrows"):
        file.write_bytes(bytes(range(255, -1, -1)) * 8)
    files = sorted(over.glob("*/*"))
    said = f"{over}: nothing of what was recorded can be read: the files of spans, trajectories, "
    assert refusals(over) == {(4, f"rltrace: {said}uses are damaged\n")}
    assert sorted(over.glob("*/*")) == files
    told = invoke("info", over)
    assert (told.exit_code, said in told.output) == (0, True)
    examined = " ".join(invoke("doctor", over).output.split())
    assert "nothing of what was recorded can be read" in examined


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_of_which_only_its_description_is_left_is_missing_data(
    run: Path, ended: bool
) -> None:
    """Whether its end was recorded or nobody is left who could."""
    at_ns = 1_800_000_000_000_000_000
    died = {"command_pid": 2**30, "wrap_pid": 2**30, "node": node_id()}
    update_run_json(str(run), **({"end_real_ns": at_ns} if ended else died))
    for file in run.glob("*/*"):
        file.unlink()
    [(code, said)] = refusals(run)
    assert (code, len(said.splitlines())) == (4, 1)
    assert "holds no process and no row: its files are missing, or the command" in said
    assert "holds no process and no row" in invoke("info", run).output


def test_a_run_that_has_just_begun_is_not_said_to_have_lost_its_files(run: Path) -> None:
    alive = {"command_pid": os.getpid(), "start_real_ns": time.time_ns(), "node": node_id()}
    update_run_json(str(run), **alive)
    for file in run.glob("*/*"):
        file.unlink()
    assert invoke("report", run).exit_code == 0
    assert "holds no process" not in invoke("info", run).output


def test_a_run_of_which_one_table_is_damaged_is_told_as_far_as_it_goes(run: Path) -> None:
    for file in run.glob("uses/*.arrows"):
        file.write_bytes(b"\xfe" * 2048)
    result = invoke("report", run)
    assert result.exit_code == 0
    assert "cut or damaged (uses)" in " ".join(result.output.split())


@pytest.mark.parametrize(("steps", "says"), [(1, "1 steady step,"), (2, "2 steady steps,")])
def test_of_too_few_steps_nothing_is_predicted(tmp_path: Path, steps: int, says: str) -> None:
    few = run_of(tmp_path, process("driver", *turns(*[6.0] * steps))).path
    for moves in ([], ["--lever", "train_speed=2"]):
        result = invoke("whatif", few, *moves)
        assert result.exit_code == CANNOT_TELL
        said = f"rltrace: cannot be predicted: {says} at least 3 are needed\n"
        assert result.output == said
