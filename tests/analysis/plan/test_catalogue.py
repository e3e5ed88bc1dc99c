"""The catalogue of frameworks is whole, names walls and adapters that there are, and fits plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.analysis.plan.catalogue import catalogue
from rltrace.testing.inside.analysis import (
    NAMES,
    STACKS,
    advise,
    frameworks,
    packaged,
    plan,
    read_workload,
    spec_of,
)

WORKLOADS = Path(__file__).parents[3] / "examples" / "workloads"
NAMED = {
    "TRL", "OpenRLHF", "verl", "slime", "NeMo-RL", "LlamaRL", "AReaL", "Laminar", "AsyncFlow",
    "Relax", "Agent Lightning", "TBA", "ROLL", "RLinf", "torchforge", "RLYX", "verl-omni", "DORA",
    "DeepSpeed-Chat", "a scaffold of your own",
}  # fmt: skip


def test_every_system_that_is_talked_about_is_there() -> None:
    assert {one.name for one in catalogue()} >= NAMED
    also = " ".join(one.also for one in catalogue())
    assert all(name in also for name in ("HybridFlow", "NeMo Gym", "RollArt", "Monarch"))


def test_every_entry_is_whole() -> None:
    for one in catalogue():
        assert set(one.bet) <= set(NAMES), one.name
        assert set(one.modes) <= {"sync", "one-step-off", "async", "trajectory"}, one.name
        assert set(one.stacks) <= set(STACKS), one.name
        assert one.sizes[0] < one.sizes[1], one.name
        assert one.says, one.name
        assert one.watch, one.name
        assert one.source, one.name
        assert one.paper == bool(one.instead), one.name
        assert one.paper or one.effort, one.name
    assert packaged("frameworks")["opinions"]


def test_settings_on_file_belong_to_frameworks_of_the_catalogue() -> None:
    known = {one.adapter for one in catalogue()} | {one.name.lower() for one in catalogue()}
    assert {name for name in frameworks() if name != "ray_trainer"} <= known


@pytest.mark.parametrize("path", sorted(WORKLOADS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_workload_file_can_be_planned(path: Path) -> None:
    found = plan(spec_of(read_workload(path), str(path)))
    advice = advise(found)
    assert not found.best.refused
    assert found.best.allowed
    assert advice.choice.framework.name
    assert advice.move_on


def test_the_prototype_is_colocated() -> None:
    path = WORKLOADS / "one-node-7b.toml"
    assert plan(spec_of(read_workload(path), str(path))).best.name == "colocated"


def test_there_is_a_workload_file_for_each_published_recipe() -> None:
    names = {path.stem for path in WORKLOADS.glob("*.toml")}
    assert names == {
        "one-node-7b", "rlvr-32b", "reasoning-70b", "giant-405b", "long-cot", "agentic-coding",
        "multimodal",
    }  # fmt: skip
