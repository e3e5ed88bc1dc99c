"""The playbook, the levers that predict its moves and the settings that make them fit together."""

from __future__ import annotations

import pytest

from rltrace.analysis.playbook import frameworks, moves, settings_for
from rltrace.testing.inside.analysis import LEVERS, NAMES


def test_every_wall_has_a_move() -> None:
    assert {move.wall for move in moves()} == set(NAMES)


def test_no_move_is_told_twice() -> None:
    told = [(move.wall, move.move) for move in moves()]
    assert len(told) == len(set(told))


def test_every_move_is_whole() -> None:
    for move in moves():
        assert move.effort in (1, 2, 3), move
        assert move.risk.endswith("."), move
        assert move.watch, move
        assert move.source, move
        assert bool(move.lever) == bool(move.values), move


def test_every_lever_of_a_move_is_one_of_the_replay() -> None:
    assert {move.lever for move in moves() if move.lever} <= {*LEVERS, "samples"}


def test_every_setting_makes_a_move_of_the_playbook() -> None:
    known = {(move.wall, move.move) for move in moves()}
    made = {(s.wall, s.move) for settings in frameworks().values() for s in settings}
    assert made <= known, made - known


def test_a_move_that_nothing_predicts_is_made_by_some_setting() -> None:
    made = {(s.wall, s.move) for settings in frameworks().values() for s in settings}
    assert not [move for move in moves() if not move.lever and (move.wall, move.move) not in made]


@pytest.mark.parametrize(
    ("framework", "version", "wall", "move", "option"),
    [
        ("verl", "0.9.1", "env/reward latency", "more reward workers", "reward.num_workers"),
        (
            "verl",
            "0.6.1",
            "env/reward latency",
            "more reward workers",
            "reward_model.sandbox_fusion.max_concurrent",
        ),
        (
            "openrlhf",
            "0.9.1",
            "learner FLOPs + memory",
            "recompute activations",
            "--gradient_checkpointing",
        ),
        (
            "openrlhf",
            "0.11.2",
            "learner FLOPs + memory",
            "recompute activations",
            "--actor.gradient_checkpointing_enable",
        ),
        ("rltrace.trainer", "", "freshness", "bound the lag", "max_lag"),
    ],
)
def test_options_are_those_of_the_version(
    framework: str, version: str, wall: str, move: str, option: str
) -> None:
    (wanted,) = [one for one in moves() if (one.wall, one.move) == (wall, move)]
    assert settings_for(framework, version, wanted)[0].option == option


def test_an_unknown_framework_has_no_settings() -> None:
    assert all(settings_for("mine", "1.0", move) == () for move in moves())
