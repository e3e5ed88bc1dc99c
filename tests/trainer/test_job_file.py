"""Jobs in TOML files: what they set, and what is said of a file that cannot be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rltrace.trainer import TrainerConfig, TrainerError, load_job


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(
        "[job]\nplacement = 'async'\nmax-lag = 1\nlink-gbps = 1\n"
        "[without]\nlink_gbps = 0\nmax_lag = 2\n"
    )
    return path


def test_the_cause_of_a_wall_is_taken_away_when_that_is_asked_for(job: Path) -> None:
    assert TrainerConfig.of(load_job(job)).link_gbps == 1
    without = TrainerConfig.of(load_job(job, without_cause=True))
    assert (without.placement, without.link_gbps, without.max_lag) == ("async", 0, 2)


def test_a_setting_has_one_name_however_it_is_written(job: Path) -> None:
    """Else what overrides it later would stand before it."""
    assert sorted(load_job(job, without_cause=True)) == ["link_gbps", "max_lag", "placement"]


@pytest.mark.parametrize(
    ("text", "without", "why"),
    [
        ("[without]\nsteps = 1", False, "has no [job] table with settings"),
        ("job = 3", False, "has no [job] table with settings"),
        ("[job]\nsteps = 1", True, "has no [without] table with settings"),
        (
            "[job]\nsteps = 1\n[withot]",
            False,
            "has no use for 'withot': settings stand in [job] or [without]",
        ),
        ("steps = 3\n[job]", False, "has no use for 'steps': settings stand in [job] or [without]"),
        ("without = 3\n[job]\nsteps = 1", True, "has no [without] table with settings"),
    ],
)
def test_a_table_that_is_missing_is_named(
    tmp_path: Path, text: str, without: bool, why: str
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(TrainerError, match=f"^{re.escape(f'{path} {why}')}$"):
        load_job(path, without)


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    bad, binary = tmp_path / "bad.toml", tmp_path / "binary.toml"
    bad.write_text("[job]\nsteps = \n")
    binary.write_bytes(b"\xff\xfe[job]")
    missing = tmp_path / "missing.toml"
    for path, why in (
        (missing, "No such file or directory"),
        (tmp_path, "Is a directory"),
        (bad, r"Invalid value \(at line 2"),
        (binary, "'utf-8' codec can't decode"),
    ):
        with pytest.raises(TrainerError, match=f"^cannot read settings from {path}: {why}"):
            load_job(path)
