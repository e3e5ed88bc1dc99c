"""wandb's files of a run, as wandb 0.31 wrote them: by OpenRLHF's logger and by verl's tracking."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from rltrace.importers import wandb_files
from rltrace.testing.inside.importers import read_log, verl
from rltrace.testing.inside.trace import WRONG_USAGE, RltraceError
from tests.importers.logs import FIXTURES

OPENRLHF = FIXTURES / "openrlhf.wandb"
VERL = FIXTURES / "verl.wandb"
BLOCK = 32768


def test_history_rows_are_read_with_their_numbers_and_times() -> None:
    records, skipped, _ = wandb_files.read(OPENRLHF, {})
    rows = [r for r in records if "train/timing/generation" in r.metrics]
    assert [r.metrics["train/timing/generation"] for r in rows] == [4.246, 0.31, 0.328, 0.405]
    assert [r.metrics["train/global_step"] for r in rows] == [1, 2, 3, 4]
    times = [r.real_ns or 0 for r in rows]
    assert min(b - a for a, b in pairwise(times)) > 6e8
    assert skipped == []


def test_what_describes_a_table_is_no_metric_and_neither_is_nan() -> None:
    records, _, _ = wandb_files.read(OPENRLHF, {})
    names = {name for record in records for name in record.metrics}
    assert not [name for name in names if "generated_samples" in name or name.startswith("_")]
    first = next(r for r in records if "train/timing/generation" in r.metrics)
    assert "train/actor_grad_norm" not in first.metrics
    assert "train/actor_grad_norm" in names


def test_a_record_that_lies_across_blocks_is_put_together() -> None:
    assert VERL.stat().st_size > BLOCK
    log = read_log(VERL)
    assert [record.step for record in log.records] == list(range(1, 14))
    assert [record.metrics["timing_s/gen"] for record in log.records] == [
        31.0 + n for n in range(13)
    ]
    assert {len(record.metrics) for record in log.records} == {27}
    assert (log.kind, log.skipped) == ("wandb file", ())


def test_the_configuration_reads_as_python_shows_it() -> None:
    patterns = {
        "mode": re.compile(r"'trainer_mode': '(\w+)'"),
        "apart": re.compile(r"colocate_all=(True|False)"),
    }
    assert read_log(VERL, patterns).settings == {"mode": "colocate_async"}
    assert read_log(OPENRLHF, patterns).settings == {"apart": "False"}


def test_verl_s_importer_takes_them_too() -> None:
    run = verl.read(VERL)
    assert (run.trainer, run.placement) == ("V1 colocate_async", "colocated")
    assert [step.seconds for step in run.steps] == [58.0 + n for n in range(13)]


@pytest.mark.parametrize("cut", [1, 40, 3000, BLOCK - 100])
def test_a_torn_file_is_read_as_far_as_it_is_whole(tmp_path: Path, cut: int) -> None:
    torn = tmp_path / "run-x.wandb"
    torn.write_bytes(VERL.read_bytes()[:-cut])
    records, skipped, _ = wandb_files.read(torn, {})
    whole, _, _ = wandb_files.read(VERL, {})
    assert records == whole[: len(records)]
    assert (len(records) == 13) is (cut < 3000)
    assert len(skipped) == 1
    assert skipped[0].startswith("run-x.wandb from byte ")


def test_a_damaged_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    data = bytearray(VERL.read_bytes())
    data[20_000] ^= 1
    (tmp_path / "run-x.wandb").write_bytes(data)
    records, skipped, _ = wandb_files.read(tmp_path / "run-x.wandb", {})
    assert 1 <= len(records) < 13
    assert "torn or damaged" in skipped[0]


def test_a_file_without_a_row_is_said(tmp_path: Path) -> None:
    (tmp_path / "run-x.wandb").write_bytes(VERL.read_bytes()[:7])
    log = read_log(tmp_path)
    assert (log.records, log.skipped) == ((), ("run-x.wandb, which has no history",))


def offline_run(folder: Path, when: str, run: str, file: Path = VERL) -> None:
    place = folder / f"wandb/offline-run-{when}-{run}"
    place.mkdir(parents=True)
    shutil.copy(file, place / f"run-{run}.wandb")


def test_a_directory_of_one_run_is_that_run(tmp_path: Path) -> None:
    offline_run(tmp_path, "20261121_100000", "abc")
    (tmp_path / "wandb/latest-run").symlink_to("offline-run-20261121_100000-abc")
    assert len(read_log(tmp_path).records) == 13


def test_a_run_that_was_resumed_has_several_files_and_another_run_is_not_mixed_in(
    tmp_path: Path,
) -> None:
    offline_run(tmp_path, "20261121_100000", "abc", OPENRLHF)
    offline_run(tmp_path, "20261121_110000", "abc")
    assert len(read_log(tmp_path).records) == len(read_log(OPENRLHF).records) + 13
    offline_run(tmp_path, "20261121_120000", "def")
    with pytest.raises(RltraceError, match="wandb's files of several experiments") as error:
        read_log(tmp_path)
    assert error.value.exit_code == WRONG_USAGE
