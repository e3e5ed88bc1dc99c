"""The formats of logs, read from files that frameworks' own loggers wrote, and from broken ones."""

from __future__ import annotations

import gzip
import math
import os
import re
import shutil
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from rltrace.importers.formats import wandb_files
from rltrace.testing.inside.adapters import LogRecord as Record
from rltrace.testing.inside.importers import LONGEST_LINE, Log, crc32c, joined, read_log, read_run
from rltrace.testing.inside.trace import WRONG_USAGE, RltraceError, bounds
from tests.importers.logs import FIXTURES, event, framed

EVENTS = FIXTURES / "separate_async/events.out.tfevents.1760000000.imported.0"
VERL = FIXTURES / "verl.wandb"


def steps_of(log: Log) -> list[int]:
    return [record.step for record in log.records]


def test_the_file_logger_s_lines_are_read() -> None:
    log = read_log(FIXTURES / "v1_sync.jsonl")
    assert (log.kind, steps_of(log), log.skipped) == ("JSON lines", [0, 1, 2, 3, 4, 5, 6], ())
    assert log.records[0].metrics == {"val-core/toy/acc/mean@1": 0.25}
    assert log.records[1].metrics["timing_s/gen"] == 2.011343642441124
    assert log.changed_ns == (FIXTURES / "v1_sync.jsonl").stat().st_mtime_ns


def test_the_console_logger_s_lines_are_read_through_colours_bars_and_ray_s_prefix() -> None:
    log = read_log(
        FIXTURES / "legacy_console.log", {"use_v1": re.compile("'use_v1': (True|False)")}
    )
    assert (log.kind, steps_of(log), log.skipped) == ("console log", [1, 2, 3, 4, 5, 6], ())
    first = log.records[0].metrics
    assert first["timing_s/gen"] == 18.951858508367565
    assert first["timing_s/agent_loop/compute_score/mean"] == 0.003  # np.float64(0.003)
    assert log.settings == {"use_v1": "False"}


def test_event_files_are_read_as_tensorboard_reads_them() -> None:
    log = read_log(FIXTURES / "separate_async")
    assert (log.kind, log.skipped) == ("TensorBoard events", ())
    assert steps_of(log) == [1, 2, 3, 4, 3, 4, 5, 6, 7, 8]
    # What tensorboard 2.21's own EventFileLoader reads from the first file.
    gens = [1.4560343027114868, 0.8251429200172424, 1.376696228981018, 0.7104789614677429]
    assert [record.metrics["timing_s/gen"] for record in log.records[:4]] == gens
    assert [record.metrics["perf/total_num_tokens"] for record in log.records[:2]] == [1912, 2063]
    assert log.records[0].real_ns == round(1760000002.7803988 * 1e9)


def test_a_log_has_as_many_lines_as_it_takes_of_the_disk_and_a_packed_one_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MOST_LINES", 10)
    lines = b"".join(b'{"step": %d, "timing_s/gen": 1.5}\n' % step for step in range(50))
    (tmp_path / "log.jsonl").write_bytes(lines)
    assert steps_of(read_log(tmp_path / "log.jsonl")) == [*range(50)]
    (tmp_path / "log.gz").write_bytes(gzip.compress(lines))
    with pytest.raises(RltraceError, match="RLTRACE_BOUNDS"):
        read_log(tmp_path / "log.gz")


@pytest.mark.parametrize("name", ["run-x.wandb", "events.out.tfevents.1.x"])
def test_a_file_that_is_mostly_a_hole_is_not_read_in_a_folder_either(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes((VERL if name.endswith("wandb") else EVENTS).read_bytes())
    os.truncate(tmp_path / name, 1 << 40)
    with pytest.raises(RltraceError, match="larger than"):
        read_log(tmp_path)


TOO_LONG = '{"' + "x" * 3 * LONGEST_LINE


@pytest.mark.parametrize(
    ("text", "records", "skipped"),
    [
        # Torn at its end, or run together with what another process printed.
        ('{"step": 1, "a": 1}\n{"step": 2, "a": 2', {1: {"a": 1}},
         ["line 2, the last one, is torn"]),
        ("step:1 - a:1 - b:2.5 - c:1", {1: {"a": 1, "b": 2.5}},
         ["the last number of the last line, which is torn"]),
        ("step:1 - a:1 - b:2.5 - c:1.5", {1: {"a": 1, "b": 2.5, "c": 1.5}}, []),
        ("step:1 - a:1 - b:2.5step:2 - a:3 - b:4\nGlobal step 3: {'a': 1.5, 'b': 12.\nbooting\n"
         "Global step 4: {'a': 2.5, 'bGlobal step 5: {'a': 3.5, 'b': 6}\n",
         {3: {"a": 1.5}, 4: {"a": 2.5}, 5: {"a": 3.5, "b": 6}},
         ["the last number of 3 lines (the first is line 1), torn or run into another",
          "2 lines (the first is line 1): figures as another framework or logger writes them"]),
        # Names of steps in a logger's prefix, in a metric's name, and in what others print.
        ("2026-01-01 - INFO - step:3 - training/global_step:3 - step:7 - a:1\n",
         {3: {"training/global_step": 3, "step": 7, "a": 1}}, []),
        ("substep:1 - a:1\nglobal_step:3 - b:2\nstep:2 of 7\nstep:4 - x y/z:nan - c:np.int64(7)\n",
         {4: {"c": 7}}, ["1 value of no finite number: x y/z (1)"]),
        # Figures in other forms.
        ("step:1 - a:1\n{'loss': 0.5, 'epoch': 0.1}\na line\n{'lr': 0.5}\n"
         '{"step": 2, "a": 2}\nstep:2 - a:2\n', {1: {"a": 1}, 2: {"a": 2}},
         ["2 lines (the first is line 2): figures as another framework or logger writes them"]),
        # JSON of anything, behind a byte order mark, nested too deep, and longer than any line.
        ('\ufeff{"step": 1, "data": {"a": 1, "b": null, "c": true, "d": "x"}}\nnoise\n[]\n'
         '{"step": "x"}\n{"step": 2, "loss": 0.5}\n', {1: {"a": 1}, 2: {"loss": 0.5}},
         ["line 2 is no JSON", "lines 3, 4 are without a step and numbers"]),
        ('{"step": 1, "a": 1}\n{"a":' + "[" * 200_000 + '\n{"step": 2, "a": 2}\n',
         {1: {"a": 1}, 2: {"a": 2}}, ["line 2 is no JSON"]),
        (f'{{"step": 1, "a": 1}}\n{TOO_LONG}\n{{"step": 2, "a": 2}}\n',
         {1: {"a": 1}, 2: {"a": 2}}, ["line 2: longer than 4 MiB"]),
    ],
    ids=["torn JSON", "torn", "whole", "run together", "names", "others", "forms", "JSON", "deep",
         "long"],
)  # fmt: skip
def test_lines_are_read_as_far_as_they_are_whole_and_what_is_skipped_is_said(
    tmp_path: Path, text: str, records: dict[int, dict[str, float]], skipped: list[str]
) -> None:
    (tmp_path / "log").write_text(text, "utf-8")
    log = read_log(tmp_path / "log")
    assert [(record.step, record.metrics) for record in log.records] == list(records.items())
    assert list(log.skipped) == skipped


@pytest.mark.parametrize(
    "line",
    [
        "step:1 - a:2 " + " " * (1 << 20) + "x",
        "Global step 1: {'a': 2, " + "'x': " * (1 << 18) + "{",
        "Global step 1: {'a': 2, " + "'x': (" * (1 << 18) + "}",
        "{'loss': 1, " + "{'x" * (1 << 18),
        "Global step 1: {'a': 2} " + "step:" * (1 << 18),
    ],
    ids=["blanks", "names", "parentheses", "braces", "steps"],
)
def test_no_text_of_a_long_line_is_read_again_and_again(tmp_path: Path, line: str) -> None:
    """Looked at from each of its places to its end, such a line takes hours."""
    (tmp_path / "log").write_text(f"step:7 - a:1.0\n{line}\n", "utf-8")
    assert read_log(tmp_path / "log").records[0] == Record(7, {"a": 1.0})
    with pytest.raises(RltraceError):
        read_run(tmp_path / "log", "trl")


@pytest.mark.parametrize("cut", [1, 300, 3000])
def test_a_torn_event_file_is_read_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    torn = tmp_path / EVENTS.name
    torn.write_bytes(EVENTS.read_bytes()[:-cut])
    log = read_log(torn)
    assert steps_of(log) == [1, 2, 3, 4][: len(log.records)]
    assert len(log.records) >= 2
    assert log.skipped[0].startswith(f"{torn.name} from byte ")


NAME = "x.tfevents.1"
SIZE = len(event(b"a", 1.0, 1))
DAMAGED = f"3 damaged records of {NAME}, the first at byte {SIZE}"


@pytest.mark.parametrize(
    ("flipped", "steps", "said"),
    [
        # The sum and the value of a record: it costs that record.
        ((2 * SIZE - 1, 4 * SIZE - 5), [1, 3, 6], DAMAGED),
        # The length of a record, and its sum: nobody knows where the next one begins.
        ((2 * SIZE,), [1, 2], f"{NAME} from byte {2 * SIZE} on"),
        ((9,), [], f"{NAME} from byte 0 on"),
    ],
)
def test_a_damaged_event_file_is_read_up_to_the_damage(
    tmp_path: Path, flipped: tuple[int, ...], steps: list[int], said: str
) -> None:
    records = [event(b"a", float(step), step) for step in range(1, 7)]
    data = bytearray(b"".join([*records[:4], framed(b"\xff" + bytes(SIZE - 17)), records[5]]))
    for at in flipped:
        data[at] ^= 1
    (tmp_path / NAME).write_bytes(data)
    log = read_log(tmp_path / NAME)
    assert log.records == tuple(Record(step, {"a": float(step)}) for step in steps)
    (skipped,) = log.skipped
    assert skipped.startswith(said)


def test_checksums_are_those_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43


def test_event_files_written_at_the_same_time_are_not_mixed(tmp_path: Path) -> None:
    for name in ("a.tfevents.1", "b.tfevents.2"):
        shutil.copy(EVENTS, tmp_path / name)
    log = read_log(tmp_path)
    assert steps_of(log) == [1, 2, 3, 4]
    assert "1 event files written at the same time" in log.skipped[0]


def test_parts_of_a_step_are_joined_and_its_repetition_is_a_step_again() -> None:
    parts = [Record(1, {"a": 1.0}), Record(1, {"b": 2.0}), Record(1, {"a": 1.0, "b": 2.0})]
    steps, repeated = joined([*parts, Record(1, {"a": 3.0}), Record(2, {"a": 1.0})])
    assert [step.metrics for step in steps] == [{"a": 1.0, "b": 2.0}, {"a": 3.0}, {"a": 1.0}]
    assert repeated == 1


EVENTS_OF_NONE = ((b"a", 1.0), (b"loss", math.nan), (b"reward", -math.inf))


@pytest.mark.parametrize(
    ("name", "content", "skipped"),
    [
        ("json lines", b'{"step": 1, "data": {"a": 1.0, "loss": NaN, "reward": -Infinity}}\n',
         "2 values of no finite number: loss (1), reward (1)"),
        ("console", b"step:1 - a:1.0 - loss:nan - reward:-inf - other:None\n", ""),
        ("numpy", b"step:1 - a:1.0 - loss:np.float64(nan) - reward:np.float32(-inf)\n", ""),
        ("dict", b"Global step 1: {'a': 1.0, 'loss': nan, 'reward': -inf}\n", ""),
        ("events", b"".join(event(*one, 1) for one in EVENTS_OF_NONE), ""),
    ],
)  # fmt: skip
def test_what_was_logged_as_no_finite_number_is_kept_apart(
    tmp_path: Path, name: str, content: bytes, skipped: str
) -> None:
    (tmp_path / name).write_bytes(content)
    log = read_log(tmp_path / name)
    (record,) = log.records
    assert record.metrics == {"a": 1.0}
    assert math.isnan(record.not_finite.pop("loss"))
    assert record.not_finite == {"reward": -math.inf}
    assert skipped in log.skipped or not skipped


# wandb's files of a run, as wandb 0.31 wrote them: by OpenRLHF's logger and by verl's tracking.

OPENRLHF = FIXTURES / "openrlhf.wandb"
BLOCK = 32768


def test_history_rows_are_read_with_their_numbers_and_times() -> None:
    """What describes a table is no metric, and neither is NaN."""
    records, skipped, _ = wandb_files.read(OPENRLHF, {})
    rows = [r for r in records if "train/timing/generation" in r.metrics]
    assert [r.metrics["train/timing/generation"] for r in rows] == [4.246, 0.31, 0.328, 0.405]
    assert [r.metrics["train/global_step"] for r in rows] == [1, 2, 3, 4]
    assert ["train/actor_grad_norm" in r.metrics for r in rows] == [False, True, True, True]
    times = [r.real_ns or 0 for r in rows]
    assert min(b - a for a, b in pairwise(times)) > 6e8
    assert skipped == []
    names = {name for record in records for name in record.metrics}
    assert not [name for name in names if "generated_samples" in name or name.startswith("_")]


def test_a_record_that_lies_across_blocks_is_put_together() -> None:
    assert VERL.stat().st_size > BLOCK
    log = read_log(VERL)
    found = [(record.step, record.metrics["timing_s/gen"]) for record in log.records]
    assert found == [(n, 30.0 + n) for n in range(1, 14)]
    assert {len(record.metrics) for record in log.records} == {27}
    assert (log.kind, log.skipped) == ("wandb file", ())


def test_the_configuration_reads_as_python_shows_it() -> None:
    patterns = {
        "mode": re.compile(r"'trainer_mode': '(\w+)'"),
        "apart": re.compile(r"colocate_all=(True|False)"),
    }
    assert read_log(VERL, patterns).settings == {"mode": "colocate_async"}
    assert read_log(OPENRLHF, patterns).settings == {"apart": "False"}
    run = read_run(VERL, "verl")
    assert (run.trainer, run.placement) == ("V1 colocate_async", "colocated")


@pytest.mark.parametrize("cut", [0, 1, 40, 3000, BLOCK - 100])
def test_a_torn_or_damaged_file_is_read_as_far_as_it_is_whole(tmp_path: Path, cut: int) -> None:
    data = bytearray(VERL.read_bytes())
    if cut:
        del data[-cut:]
    else:
        data[20_000] ^= 1
    (tmp_path / "run-x.wandb").write_bytes(data)
    records, skipped, _ = wandb_files.read(tmp_path / "run-x.wandb", {})
    whole, _, _ = wandb_files.read(VERL, {})
    assert records == whole[: len(records)]
    assert len(records) >= 1 or cut
    assert (len(records) == 13) is (0 < cut < 3000)
    assert [what.startswith("run-x.wandb from byte ") for what in skipped] == [True]


def test_a_file_without_a_row_is_said(tmp_path: Path) -> None:
    (tmp_path / "run-x.wandb").write_bytes(VERL.read_bytes()[:7])
    log = read_log(tmp_path)
    assert (log.records, log.skipped) == ((), ("run-x.wandb, which has no history",))


def offline_run(folder: Path, when: str, run: str, file: Path = VERL) -> None:
    place = folder / f"wandb/offline-run-{when}-{run}"
    place.mkdir(parents=True)
    shutil.copy(file, place / f"run-{run}.wandb")


def test_a_directory_is_one_run_however_often_it_was_resumed(tmp_path: Path) -> None:
    offline_run(tmp_path, "20261121_110000", "abc")
    (tmp_path / "wandb/latest-run").symlink_to("offline-run-20261121_110000-abc")
    assert len(read_log(tmp_path).records) == 13
    offline_run(tmp_path, "20261121_100000", "abc", OPENRLHF)
    assert len(read_log(tmp_path).records) == len(read_log(OPENRLHF).records) + 13
    offline_run(tmp_path, "20261121_120000", "def")
    with pytest.raises(RltraceError, match="several experiments") as error:
        read_log(tmp_path)
    assert error.value.exit_code == WRONG_USAGE


@pytest.mark.parametrize(
    ("name", "timer", "lengths"),
    [("trackio.db", "train/step_time", [10.0, 11.0, 12.0]),
     ("mlflow", "timing_s/step", [10.0, 11.0, 12.0])],
)  # fmt: skip
def test_what_mlflow_and_trackio_kept_is_read(name: str, timer: str, lengths: list[float]) -> None:
    """As Trackio and MLflow wrote them, three steps of a job."""
    log = read_log(FIXTURES / name)
    assert [record.metrics[timer] for record in log.records] == lengths
    assert all(record.real_ns for record in log.records)
    assert [step.seconds for step in read_run(FIXTURES / name).steps] == lengths


def test_a_database_of_something_else_is_one_sentence(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        database.execute("CREATE TABLE metrics (step)")
        database.commit()
    with pytest.raises(RltraceError, match="no database of MLflow's or Trackio's"):
        read_log(tmp_path / "x.db")
