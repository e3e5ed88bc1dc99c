"""What is advised to a job of which a log tells its version, or which it may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.testing.inside.importers import read_run
from rltrace.testing.inside.trace import Stage
from tests.importers.logs import report, written


def options(folder: Path, *lines: str) -> dict[str, tuple[str, str]]:
    """Move -> the option that makes it and the program, as they are printed."""
    fixes = report(folder, *lines)["verdict"]["fixes"]
    return {fix["move"]: (fix["printed"], fix["program"]) for fix in fixes}


def older(gen_s: float, train_s: float, *, loop: bool = False) -> list[str]:
    """Steps as verl logged them before 0.7; with an agent loop their trainer is known."""
    timers = f"timing_s/gen:{gen_s} - timing_s/reward:2.0 - timing_s/old_log_prob:20.0"
    timers += f" - timing_s/update_actor:{train_s}"
    timers += " - timing_s/agent_loop/generate_sequences/mean:9.0" * loop
    step_s = gen_s + train_s + 23.0
    return [f"step:{n} - critic/score/mean:0.4 - {timers} - timing_s/step:{step_s}"
            for n in range(1, 7)]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "offered", "versions"),
    [
        ("verl==0.4.1", False, ""), ("Using verl version: 0.5.0", False, ""),
        ("/opt/verl-0.6.1/verl/trainer", True, ""), ("verl of today", True, "from 0.6.1"),
    ],
)  # fmt: skip
def test_an_option_is_offered_where_the_version_has_it_and_else_says_which(
    tmp_path: Path, said: str, offered: bool, versions: str
) -> None:
    found = options(tmp_path, said, *older(10.0, 60.0))
    assert "dynamic batch" in found
    assert "(verl" not in found["dynamic batch"][0]
    assert ("drop the log-prob pass" in found) is offered
    if offered:
        shown = found["drop the log-prob pass"][0]
        assert shown.partition(" (verl: ")[2].rstrip(")") == versions


def test_overlap_is_another_program_and_that_of_the_version(tmp_path: Path) -> None:
    runs = {"0.6": ["", *older(80.0, 20.0, loop=True)], "any": ["", *older(80.0, 20.0)],
            "0.4": ["verl==0.4.1 verl.trainer.main_ppo", *older(80.0, 20.0)]}  # fmt: skip
    found = {}
    for name, lines in runs.items():
        (tmp_path / name).mkdir()
        found[name] = options(tmp_path / name, *lines)["overlap generation with training"]
    recipe, main = "recipe.one_step_off_policy.main_ppo", "verl.experimental.one_step_off_policy"
    assert (found["0.6"][0], recipe in found["0.6"][1]) == ("", True)
    assert found["0.4"] == ("", "")
    assert found["any"][0].endswith("(verl: from 0.9)")
    assert main in found["any"][1]
    assert "from 0.7" in found["any"][1]


@pytest.mark.parametrize(
    ("said", "waits"), [("verl==0.4.1", False), ("verl==0.9.1", True), ("", True)]
)
def test_a_poll_ends_generation_only_where_the_version_has_one(
    tmp_path: Path, said: str, waits: bool
) -> None:
    run = read_run(written(tmp_path, said, *older(10.0, 60.0)))
    assert [one.stage is Stage.WAIT for one in run.steps[0].inside if one.name == "gen"] == [waits]
