"""Goodput as a product: every second and every token has one reason, and the product is exact."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.analysis.cascade import Cascade
from rltrace.testing.inside.analysis import Summary, summarize
from rltrace.testing.inside.trace import Fate, Run, Stage
from rltrace.testing.made import at, process, rows, run_of

WORKLOADS: list[dict[str, Any]] = [
    {},
    {"placement": "disaggregated"},
    {"placement": "one-step-off"},
    {"placement": "async", "mixed": 0.3, "unknown_versions": 0.1},
    {"placement": "async", "kill_step": 5, "torn": True, "nodes": 2},
    {"gpus": 0},
]


def of(run: Run, **options: Any) -> Cascade:
    found = summarize(run, **options, predict=False).cascade
    assert found is not None
    return found


def factor(found: Cascade, name: str) -> float:
    return next(one.value for one in found.factors if one.name == name)


def seconds(found: Cascade) -> dict[str, float]:
    return {part.reason: part.seconds for part in found.seconds}


def _product(found: Cascade) -> float:
    return math.prod(factor.value for factor in found.factors)


@pytest.mark.parametrize("knobs", WORKLOADS, ids=str)
def test_the_product_is_the_goodput_and_nothing_is_lost_twice(
    synthetic: Any, knobs: dict[str, Any]
) -> None:
    run, truth = synthetic(**knobs)
    found = of(run)
    assert _product(found) == pytest.approx(found.effective_tokens_per_device_s, rel=1e-12)
    assert sum(part.seconds for part in found.seconds) == pytest.approx(found.wall_s)
    assert sum(part.share for part in found.seconds) == pytest.approx(1)
    available = sum(part.seconds for part in found.seconds if part.in_steps)
    assert found.available_s == pytest.approx(available)
    tokens = {one.reason: one.tokens for one in found.tokens}
    assert sum(tokens.values()) == found.generated_tokens == truth.generated_tokens
    assert tokens["useful"] == truth.useful_tokens
    assert tokens.get("trained in groups of equal reward", 0) == truth.zero_advantage_tokens
    devices = truth.gpus or found.devices
    rate = truth.useful_tokens / (devices * found.wall_s)
    assert found.useful_tokens_per_device_s == pytest.approx(rate)
    assert all(0 < one.value <= 1 for one in found.factors if one.name != "peak rate")


def test_placement_efficiency_is_that_of_the_devices(synthetic: Any) -> None:
    run, truth = synthetic(placement="disaggregated", warmup_steps=0)
    found = of(run)
    learners = next(pool for pool in found.pools if pool.roles == ("learner",))
    work = ("reference", "logprob", "train")
    worked_s = sum(step.tau_s[stage] for step in truth.steps for stage in work)
    assert learners.devices == truth.gpus // 2
    steps_s = sum(step.step_s for step in truth.steps)
    assert learners.busy_share == pytest.approx(worked_s / steps_s, rel=1e-6)
    all_busy = sum(pool.busy_share * pool.devices for pool in found.pools) / truth.gpus
    assert factor(found, "placement efficiency") == pytest.approx(all_busy, rel=1e-6)


def trained(made: Any, time_s: float, trajectory: int, tokens: int = 100, group: int = -1) -> None:
    rows(
        made,
        "trajectories",
        start_s=[time_s - 1],
        end_s=[time_s - 0.5],
        trajectory=[trajectory],
        group=[group],
        first_version=[0],
        response_tokens=[tokens],
    )
    fate = {"version": [0], "fate": [Fate.TRAINED], "tokens": [tokens]}
    rows(made, "uses", time_s=[time_s], trajectory=[trajectory], **fate)


def test_each_second_of_a_run_has_its_reason(tmp_path: Path) -> None:
    actor = process("rollout", (Stage.ROLLOUT, 10, 14), (Stage.ROLLOUT, 22, 26), devices=(0,))
    learner = process(
        "learner",
        (("step", 0), 10, 20),
        (Stage.TRAIN, 14, 19),
        (Stage.EVAL, 20, 21),
        (("step", 1), 22, 33),
        (Stage.TRAIN, 26, 31),
        (Stage.CHECKPOINT, 31, 32),
        devices=(1,),
    )
    trained(learner, 19, 1)
    found = of(run_of(tmp_path, actor, learner, start_real_ns=at(0), end_real_ns=at(40)))
    assert seconds(found) == pytest.approx(
        {
            "start-up": 10,
            "rollout": 8,
            "train": 10,
            "after the last step": 7,
            "eval": 1,
            "between steps": 1,
            "checkpoint": 1,
            "no span": 2,
        }
    )
    assert factor(found, "availability") == pytest.approx(20 / 40)
    assert factor(found, "placement efficiency") == pytest.approx(18 / (2 * 20))
    assert [(pool.roles, pool.devices) for pool in found.pools] == [
        (("learner",), 1),
        (("rollout",), 1),
    ]


def test_what_a_process_starts_works_in_its_role(tmp_path: Path) -> None:
    engine = process("rollout", (("step", 0), 0, 10), devices=(0,))
    core = process("core", (Stage.ROLLOUT, 0, 8), devices=(0,))
    run_of(tmp_path, engine, core)
    facts = {file: json.loads(file.read_text()) for file in (tmp_path / "run/process").iterdir()}
    parent = next(one["who"] for one in facts.values() if one["role"] == "rollout")
    for file, known in facts.items():
        if known["role"] == "core":
            started = {"role": None, "forked_from": parent, "start_ns": known["start_ns"] + 1}
            file.write_text(json.dumps({**known, **started}) + "\n")
    found = of(rltrace.open_run(tmp_path / "run"))
    assert [(pool.roles, pool.devices) for pool in found.pools] == [(("rollout",), 1)]


def test_processes_that_share_a_device_work_on_it_once(tmp_path: Path) -> None:
    spans = [(("step", 0), 0, 10), (Stage.ROLLOUT, 0, 8), (Stage.SWITCH, 8, 9)]
    first = process("worker", *spans, devices=(0,))
    second = process("worker", (Stage.TRAIN, 6, 9), rank=1, devices=(0,))
    found = of(run_of(tmp_path, first, second))
    assert factor(found, "placement efficiency") == pytest.approx(0.9)


def test_steps_that_a_restart_did_again_are_lost_with_their_tokens(tmp_path: Path) -> None:
    learner = process("learner", *((("step", n), a, a + 10) for n, a in ((0, 0), (1, 10), (2, 20))))
    again = process("learner", *((("step", n), a, a + 10) for n, a in ((1, 40), (2, 50))), rank=1)
    for n, made, time_s in ((1, learner, 5), (2, learner, 15), (3, learner, 25), (4, again, 55)):
        trained(made, time_s, n)
    found = of(run_of(tmp_path, learner, again))
    assert seconds(found)["steps done again"] == pytest.approx(20)
    tokens = {one.reason: one.tokens for one in found.tokens}
    assert tokens == {"useful": 200, "trained in steps that were done again": 200}


def test_what_was_done_again_leaves_no_doubt_about_what_counts(tmp_path: Path) -> None:
    """The signal of the lost step is unknown, that of the step that counts is not."""
    learner = process("learner", (("step", 0), 0, 10), (("step", 1), 10, 20))
    again = process("learner", (("step", 1), 40, 50), rank=1)
    trained(learner, 15, 1)
    for trajectory in (2, 3):
        trained(again, 45, trajectory, group=7)
    rows(again, "rewards", start_s=[44] * 2, end_s=[44] * 2, trajectory=[2, 3], value=[0.0, 1.0])
    found = of(run_of(tmp_path, learner, again))
    share = next(one for one in found.factors if one.name == "useful share")
    assert share.low == share.value == pytest.approx(2 / 3)


def test_a_job_that_died_in_its_first_step_was_never_available(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 5, -1), (Stage.ROLLOUT, 5, 8))
    found = of(run_of(tmp_path, driver, start_real_ns=at(0), end_real_ns=at(20), exit_code=1))
    assert seconds(found) == pytest.approx({"start-up": 5, "a step that never ended": 15})
    assert factor(found, "availability") == 0
    assert math.isnan(_product(found))


def test_what_is_not_known_is_unknown_and_says_what_is_missing(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, 10), (Stage.TRAIN, 0, 10))
    found = of(run_of(tmp_path, driver))
    basis = {one.name: one.basis for one in found.factors if math.isnan(one.value)}
    assert set(basis) == {"useful share", "freshness weight", "peak rate"}
    assert "nobody recorded" in basis["useful share"]
    assert math.isnan(_product(found))


@pytest.mark.parametrize("meta", [{}, {"imported": {"trainer": "verl", "kind": "console"}}])
def test_without_steps_or_a_clock_there_is_no_cascade(tmp_path: Path, meta: Any) -> None:
    spans = [(Stage.TRAIN, 0, 1)] if not meta else [(("step", 0), 0, 1), (Stage.TRAIN, 0, 1)]
    found: Summary = summarize(run_of(tmp_path, process("driver", *spans), **meta), predict=False)
    assert found.cascade is None


def test_dollars_follow_the_price(synthetic: Any) -> None:
    run, _ = synthetic()
    found = of(run, price_usd_per_hour=2.0)
    expected = found.effective_tokens_per_device_s * 3600 / 2
    assert found.effective_tokens_per_usd == pytest.approx(expected)


def test_what_warmup_took_longer_is_told_by_steps_of_its_kind(tmp_path: Path) -> None:
    """Of ten steps five generate and take 10 s, the first of them 50 s, and five take 1 s."""
    spans: list[tuple[Any, ...]] = []
    now = 0.0
    for n in range(10):
        length = 50 if n == 0 else 10 if n % 2 == 0 else 1
        spans.append((("step", n), now, now + length))
        spans.append((Stage.TRAIN if n % 2 else Stage.ROLLOUT, now, now + length))
        now += length
    found = of(run_of(tmp_path, process("driver", *spans)))
    assert seconds(found)["warm-up, beyond a usual step"] == pytest.approx(40)
