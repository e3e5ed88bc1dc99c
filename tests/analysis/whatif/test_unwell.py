"""Of a run that is not well the report, what-if and experiment say so first, and list no gain."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import rltrace
from rltrace.cli import main
from rltrace.testing.inside.analysis import alarms, summarize
from rltrace.testing.inside.trace import update_run_json
from rltrace.testing.made import at, process, run_of, turns

CRASHED: dict[str, Any] = {"exit_code": 1, "end_real_ns": at(60)}
SAYS = "the job failed (exit code 1) after 6 complete steps"
COMMAND = [sys.executable, "train.py", "--max-lag", "4"]


def made(path: Path, **meta: Any) -> Path:
    """A run of six steps."""
    driver = process("driver", *turns(6, 6, 6, 6, 6, 6))
    run_of(path, driver, command=COMMAND, **meta)
    return path / "run"


def asked(*words: str) -> Result:
    return CliRunner().invoke(main, [*words])


def test_all_three_have_the_same_alarms(tmp_path: Path) -> None:
    run = rltrace.open_run(made(tmp_path, **CRASHED))
    found = summarize(run).verdict
    assert found.alarms == alarms(run) == (SAYS,)
    assert found.fixes == ()


def test_no_list_of_gains(tmp_path: Path) -> None:
    path = str(made(tmp_path, **CRASHED))
    result = asked("whatif", path)
    assert result.exit_code == 3
    assert SAYS in result.output
    assert "%" not in result.output
    plain = asked("whatif", path, "--json")
    assert plain.exit_code == 3
    answer = json.loads(plain.stdout)
    assert (answer["alarms"], answer["predictions"]) == ([SAYS], [])


def test_one_change_is_answered_below_the_alarm(tmp_path: Path) -> None:
    path = str(made(tmp_path, **CRASHED))
    text = " ".join(asked("whatif", path, "--lever", "train_speed=2").output.split())
    assert text.index("The run is not well: the job failed") < text.index("Then:")
    answer = json.loads(asked("whatif", path, "--lever", "train_speed=2", "--json").stdout)
    assert answer["alarms"] == [SAYS]
    assert len(answer["predictions"]) == 1


def test_a_run_that_is_well_has_its_list(tmp_path: Path) -> None:
    result = asked("whatif", str(made(tmp_path)), "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["alarms"] == []
    assert answer["predictions"]


def test_no_fix_is_tried_and_a_change_of_ones_own_is_with_the_alarm_first(tmp_path: Path) -> None:
    path = str(made(tmp_path, **CRASHED))
    for file in Path(path, "process").glob("*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "adapter": "rltrace.trainer"}))
    refused = asked("experiment", path, "--dry-run")
    assert refused.exit_code == 3
    assert SAYS in refused.output
    told = asked("experiment", path, "--dry-run", "--set", "max_lag=1")
    assert told.exit_code == 0
    assert told.output.index(SAYS) < told.output.index("change: max_lag=1")


@pytest.mark.parametrize("words", [[], ["--set", "lr=2"], ["--fix", "1"]])
def test_a_loop_of_ones_own_is_told_what_to_do_instead(tmp_path: Path, words: list[str]) -> None:
    path = made(tmp_path)
    update_run_json(str(path), framework=None)
    result = asked("experiment", str(path), "--dry-run", *words)
    assert result.exit_code == 3
    assert "`rltrace wrap --out DIR` with the change and without" in result.output
    assert "rltrace compare BEFORE AFTER" in result.output
