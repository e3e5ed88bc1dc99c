"""The formats of logs, read from files that verl's own loggers wrote, and from broken ones."""

from __future__ import annotations

import math
import random
import shutil
import struct
from pathlib import Path

import pytest

from rltrace.testing.inside.importers import (
    LONGEST_LINE,
    SETTINGS,
    Log,
    Record,
    crc32c,
    event_files,
    joined,
    out_of_order,
    read_log,
)
from rltrace.testing.inside.importers import trl_read as read_trl
from rltrace.testing.inside.importers import verl_read as read_verl
from rltrace.testing.inside.trace import UNREADABLE, WRONG_USAGE, RltraceError
from tests.importers.logs import FIXTURES, json_lines

EVENTS = "separate_async/events.out.tfevents.1760000000.imported.0"


def steps_of(log: Log) -> list[int]:
    return [record.step for record in log.records]


def test_the_file_logger_s_lines_are_read() -> None:
    log = read_log(FIXTURES / "v1_sync.jsonl")
    assert (log.kind, steps_of(log), log.skipped) == ("JSON lines", [0, 1, 2, 3, 4, 5, 6], ())
    assert log.records[0].metrics == {"val-core/toy/acc/mean@1": 0.25}
    assert log.records[1].metrics["timing_s/gen"] == 2.011343642441124
    assert log.changed_ns == (FIXTURES / "v1_sync.jsonl").stat().st_mtime_ns


def test_the_console_logger_s_lines_are_read_through_colours_bars_and_ray_s_prefix() -> None:
    log = read_log(FIXTURES / "legacy_console.log", SETTINGS)
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


def test_a_torn_last_line_is_skipped_and_said(tmp_path: Path) -> None:
    whole = (FIXTURES / "v1_sync.jsonl").read_text("utf-8")
    (tmp_path / "log").write_text(whole[:-40], "utf-8")
    log = read_log(tmp_path / "log")
    assert steps_of(log) == [0, 1, 2, 3, 4, 5]
    assert log.skipped == ("line 7, the last one, is torn",)


def test_a_torn_console_line_loses_its_last_number_only(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("step:1 - a:1 - timing_s/gen:2.5 - timing_s/step:1", "utf-8")
    log = read_log(tmp_path / "log")
    assert log.records[0].metrics == {"a": 1.0, "timing_s/gen": 2.5}
    assert log.skipped == ("the last number of the last line, which is torn",)


def test_lines_that_are_torn_or_run_together_lose_their_last_number(tmp_path: Path) -> None:
    text = (
        "step:1 - a:1 - b:2.5step:2 - a:3 - b:4\n"
        "Global step 3: {'a': 1.5, 'b': 12.\n"
        "booting\n"
        "Global step 4: {'a': 2.5, 'bGlobal step 5: {'a': 3.5, 'b': 6}\n"
    )
    (tmp_path / "log").write_text(text, "utf-8")
    log = read_log(tmp_path / "log")
    assert [(record.step, record.metrics) for record in log.records] == [
        (1, {"a": 1.0}),
        (2, {"a": 3.0, "b": 4.0}),
        (3, {"a": 1.5}),
        (4, {}),
        (5, {"a": 3.5, "b": 6.0}),
    ]
    said = "the last number of 3 lines (the first is line 1), torn or run into another"
    assert log.skipped == (said,)


def test_a_name_in_a_logger_s_prefix_or_a_metric_s_is_no_other_step(tmp_path: Path) -> None:
    text = "2026-01-01 - INFO - step:3 - training/global_step:3 - step:7 - a:1\n"
    (tmp_path / "log").write_text(text, "utf-8")
    log = read_log(tmp_path / "log")
    metrics = {"training/global_step": 3.0, "step": 7.0, "a": 1.0}
    assert (log.records, log.skipped) == ((Record(3, metrics),), ())


def test_figures_in_other_forms_are_counted(tmp_path: Path) -> None:
    lines = (
        "step:1 - a:1",
        "{'loss': 0.5, 'epoch': 0.1}",
        "a line",
        "{'lr': 0.5}",
        '{"step": 2, "a": 2}',
        "step:2 - a:2",
    )
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    log = read_log(tmp_path / "log")
    assert steps_of(log) == [1, 2]
    said = "2 lines (the first is line 2): figures as another framework or logger writes them"
    assert log.skipped == (said,)
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in lines[1:4]), "utf-8")
    with pytest.raises(RltraceError, match=r"no metrics of verl: .*skipped: line 1: figures as"):
        read_verl(tmp_path / "log")


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
        read_trl(tmp_path / "log")


def test_lines_of_other_programs_are_no_steps(tmp_path: Path) -> None:
    text = "substep:1 - a:1\nglobal_step:3 - b:2\nstep:2 of 7\nstep:4 - x y/z:nan - c:np.int64(7)\n"
    (tmp_path / "log").write_text(text, "utf-8")
    log = read_log(tmp_path / "log")
    assert log.records == (Record(4, {"c": 7.0}),)
    assert log.skipped == ("1 value of no finite number: x y/z (1)",)


def test_odd_json_lines_are_counted(tmp_path: Path) -> None:
    text = (
        '{"step": 1, "data": {"a": 1, "b": null, "c": true, "d": "x"}}\nnoise\n[]\n{"step": "x"}\n'
    )
    (tmp_path / "log").write_text(text + '{"step": 2, "loss": 0.5}\n', "utf-8")
    log = read_log(tmp_path / "log")
    assert log.records == (Record(1, {"a": 1.0}), Record(2, {"loss": 0.5}))
    assert log.skipped == ("line 2 is no JSON", "lines 3, 4 are without a step and numbers")


@pytest.mark.parametrize("cut", [1, 300, 3000])
def test_a_torn_event_file_is_read_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    data = (FIXTURES / EVENTS).read_bytes()
    torn = tmp_path / Path(EVENTS).name
    torn.write_bytes(data[:-cut])
    log = read_log(torn)
    assert steps_of(log) == [1, 2, 3, 4][: len(log.records)]
    assert len(log.records) >= 2
    assert log.skipped[0].startswith(f"{torn.name} from byte ")


def test_a_damaged_event_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    data = bytearray((FIXTURES / EVENTS).read_bytes())
    data[3000:3100] = bytes(100)
    (tmp_path / "x.tfevents.1").write_bytes(data)
    log = read_log(tmp_path)
    assert 1 <= len(log.records) < 4
    assert any("torn or damaged" in what for what in log.skipped)


def test_a_damaged_record_costs_that_record(tmp_path: Path) -> None:
    records = [event(b"a", float(step), step) for step in range(1, 7)]
    at_sum, at_value = len(records[1]) - 1, len(records[3]) - 5
    records[1] = flipped(records[1], at_sum)
    records[3] = flipped(records[3], at_value)
    records[4] = framed(b"\xff no message")
    (tmp_path / "log").write_bytes(b"".join(records))
    log = read_log(tmp_path / "log")
    assert log.records == tuple(Record(step, {"a": float(step)}) for step in (1, 3, 6))
    where = len(records[0])
    assert log.skipped == (f"3 damaged records of log, the first at byte {where}",)


def test_a_damaged_length_ends_the_file_there(tmp_path: Path) -> None:
    records = [event(b"a", float(step), step) for step in range(1, 5)]
    records[2] = flipped(records[2], 0)
    (tmp_path / "log").write_bytes(b"".join(records))
    log = read_log(tmp_path / "log")
    assert steps_of(log) == [1, 2]
    where = len(records[0] + records[1])
    assert log.skipped == (f"log from byte {where} on, where it is torn or damaged",)


def test_an_event_file_that_is_damaged_where_it_begins_is_one_sentence(tmp_path: Path) -> None:
    log = tmp_path / "x.tfevents.1"
    log.write_bytes(flipped(event(b"a", 1.0, 1), 9))
    with pytest.raises(RltraceError, match=r"no metrics of verl: .*from byte 0 on.*damaged"):
        read_verl(log)


def test_checksums_are_those_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43


@pytest.mark.parametrize("size", [65535, 65536, 70001])
def test_a_long_record_has_the_checksum_of_its_bits(size: int) -> None:
    data = random.Random(size).randbytes(size)
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    assert crc32c(data) == state ^ 0xFFFFFFFF


def test_event_files_written_at_the_same_time_are_not_mixed(tmp_path: Path) -> None:
    for name in ("a.tfevents.1", "b.tfevents.2"):
        shutil.copy(FIXTURES / EVENTS, tmp_path / name)
    log = read_log(tmp_path)
    assert steps_of(log) == [1, 2, 3, 4]
    assert "1 event files written at the same time" in log.skipped[0]


def test_a_directory_of_several_experiments_is_not_guessed_at(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        shutil.copy(FIXTURES / EVENTS, tmp_path / name)
    with pytest.raises(RltraceError, match=r"several experiments: name one of one, two") as error:
        read_log(tmp_path)
    assert error.value.exit_code == WRONG_USAGE


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "is empty"), (b" \n\n", "is empty"), (b"\x7fELF\0\0\0\0\0", "is no log of metrics")],
)
def test_a_file_that_is_no_log_is_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(RltraceError, match=says) as error:
        read_log(tmp_path / "log")
    assert error.value.exit_code == UNREADABLE


def test_a_log_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(RltraceError, match=r"does not exist|holds no TensorBoard event file"):
            read_log(path)


def test_parts_of_a_step_are_joined_and_its_repetition_is_a_step_again() -> None:
    parts = [Record(1, {"a": 1.0}), Record(1, {"b": 2.0}), Record(1, {"a": 1.0, "b": 2.0})]
    steps, repeated = joined([*parts, Record(1, {"a": 3.0}), Record(2, {"a": 1.0})])
    assert [step.metrics for step in steps] == [{"a": 1.0, "b": 2.0}, {"a": 3.0}, {"a": 1.0}]
    assert repeated == 1


def test_a_restart_is_in_order_and_a_shuffled_log_is_not() -> None:
    def records(*steps: int) -> list[Record]:
        return [Record(step, {}) for step in steps]

    assert out_of_order(records(1, 2, 3, 2, 3, 4)) is None
    assert out_of_order(records(1, 3, 2)) == (2, 3)


def test_an_infinite_number_is_not_known(tmp_path: Path) -> None:
    log = read_log(json_lines(tmp_path / "log", (1, {"a": float("inf"), "b": float("nan")})))
    assert log.records == (Record(1, {}),)
    assert log.skipped == ("2 values of no finite number: a (1), b (1)",)


def event(tag: bytes, value: float, step: int) -> bytes:
    """An event of one scalar, as a record of an event file."""
    one = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
    return framed(b"\x10" + bytes([step, 0x2A, len(one) + 2, 0x0A, len(one)]) + one)


def framed(message: bytes) -> bytes:
    """A message as a record of an event file."""
    head = struct.pack("<Q", len(message))
    sums = [struct.pack("<I", event_files.checksum(part)) for part in (head, message)]
    return head + sums[0] + message + sums[1]


def flipped(data: bytes, at: int) -> bytes:
    """The same with one bit of a byte the other way round."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("json lines", b'{"step": 1, "data": {"a": 1.0, "loss": NaN, "reward": -Infinity}}\n'),
        ("console", b"step:1 - a:1.0 - loss:nan - reward:-inf - other:None\n"),
        ("numpy", b"step:1 - a:1.0 - loss:np.float64(nan) - reward:np.float32(-inf)\n"),
        ("dict", b"Global step 1: {'a': 1.0, 'loss': nan, 'reward': -inf}\n"),
        ("events", b"".join(event(*one, 1) for one in  # type: ignore[arg-type]
                            ((b"a", 1.0), (b"loss", math.nan), (b"reward", -math.inf)))),
    ],
)  # fmt: skip
def test_what_was_logged_as_no_finite_number_is_kept_apart(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    (record,) = read_log(tmp_path / name).records
    assert record.metrics == {"a": 1.0}
    assert math.isnan(record.not_finite.pop("loss"))
    assert record.not_finite == {"reward": -math.inf}


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'\xef\xbb\xbf{"step": 1, "data": {"a": 2}}\n')
    log = read_log(tmp_path / "log")
    assert (log.kind, log.records, log.skipped) == ("JSON lines", (Record(1, {"a": 2.0}),), ())


def test_a_line_that_is_too_long_is_left_out_and_said(tmp_path: Path) -> None:
    junk = '{"' + "x" * 3 * LONGEST_LINE + "\n"
    (tmp_path / "log").write_text(f'{{"step": 1, "a": 1}}\n{junk}{{"step": 2, "a": 2}}\n', "utf-8")
    log = read_log(tmp_path / "log")
    assert steps_of(log) == [1, 2]
    assert log.skipped == ("line 2: longer than 4 MiB",)
