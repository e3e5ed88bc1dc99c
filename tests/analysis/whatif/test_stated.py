"""Stated stages: the seeds' widgets and worked examples with their flaws mended, and nonsense."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.published import reshard_bytes
from rltrace.analysis.whatif.stated_workload import read_stages
from rltrace.testing.inside.analysis import (
    Constants,
    baseline,
    predict,
    replay,
    table,
    train_mfu,
    weight_bytes,
)
from rltrace.testing.inside.trace import RltraceError
from tests.analysis.whatif.played import ALIKE, told

USED = {"log_deviation", "engine_room", "full_slowdown"}
WIDGET = {"rollout": 360, "reward": 80, "train": 120, "sync": 35}


def test_the_triage_of_a_step_and_what_overlap_makes_of_it() -> None:
    turns = baseline(told(stages=WIDGET).workload)
    assert turns.step_s == pytest.approx(595)
    assert WIDGET["rollout"] / turns.step_s == pytest.approx(0.605, abs=0.001)
    # The chain of the actors, 440 s, binds; 45 % of the sync stays exposed in async.
    beside = told("one-step-off", stages={**WIDGET, "sync": 0.45 * 35}).workload(Constants(ALIKE))
    step_s = replay(beside).step_s
    assert step_s == pytest.approx(455.75)
    assert 595 / step_s == pytest.approx(1.31, abs=0.01)


def test_weights_have_two_bytes_a_parameter() -> None:
    assert weight_bytes(70e9) == 140e9


def test_resharding_moves_what_a_device_lacks() -> None:
    assert reshard_bytes("all-gather", 128, 8, 2, 8) == 127
    assert reshard_bytes("within replica", 128, 8, 2, 8) == 120
    assert reshard_bytes("grouped", 128, 8, 2, 8, 4) == 24
    with pytest.raises(ValueError, match="no scheme"):
        reshard_bytes("by pigeon", 1, 1, 1, 1)


def test_a_shared_pool_of_unknown_size_is_still_split_at_its_size() -> None:
    file = told(stages={"rollout": 83, "train": 17})
    found = predict(file.workload, [("placement", "async")])
    assert sum(found.devices.values()) == pytest.approx(1, abs=0.001)
    assert found.step_s.value > 40  # own engines at the same seconds would take 33 s


def test_an_async_step_that_was_measured_bounds_the_tail() -> None:
    file = told("async", stages={"rollout": 150, "train": 180}, step_s=200)
    base = baseline(file.workload)
    assert base.replayed_s == pytest.approx(200, rel=0.1)


def test_a_learner_step_has_its_share_of_the_peak() -> None:
    assert train_mfu(7e9, 64 * 16 * 1024, 8, 4, 989) == pytest.approx(1.39, abs=0.01)


def test_a_stated_step_keeps_what_its_stages_do_not_explain() -> None:
    file = told(stages={"rollout": 60, "train": 30}, step_s=100)
    assert baseline(file.workload).step_s == 100
    assert file.workload(Constants()).rest_s == pytest.approx(10)


def test_the_tail_comes_from_what_is_stated_before_any_constant() -> None:
    def tail_s(**rollout: float) -> tuple[float, set[str]]:
        constants = Constants()
        load = told(stages={"rollout": 100, "train": 10}, rollout=rollout).workload(constants)
        engine, samples = load.engine, load.batches[0]
        return engine.token_s * float(samples.tokens.max()), set(constants.used)

    def middle(name: str) -> float:
        return table()[name].middle

    assert tail_s(throughput_s=30)[0] == pytest.approx(70)
    pace = middle("alone_tokens_per_s")
    assert tail_s(cap_tokens=1500) == (pytest.approx(1500 / pace), {"alone_tokens_per_s", *USED})
    # A longest response that outlasts generation leaves time for the others' work.
    most, used = tail_s(cap_tokens=90_000)
    assert 50 < most < 100 * 0.9
    assert "full_slowdown" in used
    seconds, used = tail_s()
    assert seconds == pytest.approx(100 * middle("tail_share"))
    assert "tail_share" in used


def test_large_models_have_a_longer_tail_and_even_lengths_a_shorter_one() -> None:
    def tail_s(parameters: float, **rollout: float) -> float:
        file = told(stages={"rollout": 500}, rollout=rollout, model={"parameters": parameters})
        load = file.workload(Constants())
        return load.engine.token_s * float(load.batches[0].tokens.max())

    paces = [8192 / tail_s(size, cap_tokens=8192) for size in (7.6e9, 32e9, 72e9)]
    assert paces == sorted(paces, reverse=True)
    assert paces[0] == pytest.approx(table()["alone_7b_tokens_per_s"].middle)
    assert all(18 <= pace <= 36 for pace in paces[1:])  # as published
    even, uneven = (
        tail_s(7.6e9, mean_tokens=1000, p95_tokens=p95, cap_tokens=32768, prompts=256)
        for p95 in (1500, 3000)
    )
    assert even < uneven


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[stages]\nrolout = 3", "there is no stages.rolout"),
        ("[stage]\nrollout = 3", r"there is no table \[stage\]"),
        ("placement = 'here'\n[stages]\nrollout = 3", "placement must be one of"),
        ("step_s = 10", "at least one stage"),
        ("step_s = 2\n[stages]\nrollout = 3", "shorter than one of its stages"),
        ("[stages]\nrollout = 3\n[rollout]\nthroughput_s = 4", "must not exceed"),
        ("[stages]\nrollout = 3\n[devices]\nshared = 8\ntrain = 4", "either shared or split"),
        *(
            (
                f"[stages]\nrollout = 3\n[rollout]\n{less}_tokens = 9\n{more}_tokens = 8",
                f"{more}_to",
            )
            for less, more in (("mean", "p95"), ("mean", "cap"), ("p95", "cap"))
        ),
        ("stages = 3", r"stages must be a table, \[stages\], and is 3"),
        ("[stages\n", "is no TOML file"),
        ("", "cannot read"),
    ],
)
def test_nonsense_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "stages.toml"
    if text:
        path.write_text(text)
    with pytest.raises(RltraceError, match=says) as error:
        read_stages(path)
    assert "\n" not in str(error.value)
