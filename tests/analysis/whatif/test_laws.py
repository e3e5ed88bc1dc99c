"""Laws of predictions that hold for every workload, stated or made by hand; from fixed seeds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rltrace.testing.inside.analysis import LEVERS, Constants, predict, predictor, ranked
from rltrace.testing.inside.analysis import EngineModel as Engine
from rltrace.testing.inside.analysis import SampleBatch as Batch
from rltrace.testing.inside.analysis import StepWorkload as Workload
from rltrace.testing.inside.analysis import SyncModel as Sync
from rltrace.testing.inside.analysis import predict_Estimate as Estimate
from rltrace.testing.inside.trace import RltraceError, Stage
from tests.analysis.whatif.played import told

FEW = settings(
    max_examples=15, deadline=None, derandomize=True, database=None,
    suppress_health_check=[*HealthCheck],
)  # fmt: skip
EVEN = 0.05  # by which two replays of many short steps may differ for no reason of the job's
SECONDS = st.floats(5, 500)
Tables = dict[str, Any]


@st.composite
def stage_files(draw: st.DrawFn, *placements: str) -> Tables:
    """A stages file with some of what may be stated."""
    placement = draw(
        st.sampled_from(placements or ("colocated", "disaggregated", "one-step-off", "async"))
    )
    stages = {"rollout": draw(SECONDS), "train": draw(SECONDS)}
    stages |= draw(st.sampled_from([{}, {"sync": 5.0}, {"sync": 20.0}, {"logprob": 30.0}]))
    rollout = draw(
        st.sampled_from(
            [{}, {"cap_tokens": 8192}, {"mean_tokens": 900, "cap_tokens": 16384, "prompts": 64}]
        )
    )
    pools = {"shared": 16} if placement == "colocated" else {"rollout": 8, "train": 8}
    found: Tables = {"placement": placement, "stages": stages, "rollout": rollout}
    found |= {"devices": pools, "lag_bound": draw(st.sampled_from([0.5, 1, 2, 4]))}
    if draw(st.booleans()):
        found["step_s"] = draw(st.floats(1.0, 1.5)) * max(stages.values())
    return found


def source(tables: Tables) -> Any:
    return told(**tables).workload


@st.composite
def made(draw: st.DrawFn) -> Workload:
    """A workload as a run gives it: few samples, tools, engines with few places."""
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    size, group = draw(st.sampled_from([8, 16])), draw(st.sampled_from([1, 4]))
    tools_s = draw(st.sampled_from([0.0, 3.0]))
    batches = tuple(
        Batch(
            np.exp(random.normal(3, 0.8, size)), tools_s * random.uniform(0.5, 1.5, size),
            np.full(size, 0.5), tuple(i // group for i in range(size)),
        )
        for _ in range(4)
    )  # fmt: skip
    slots, shared = draw(st.sampled_from([2.0, 4.0])), draw(st.sampled_from([0.0, 0.05, 0.2]))
    return Workload(
        placement=draw(st.sampled_from(["colocated", "disaggregated", "one-step-off", "async"])),
        batches=batches, engine=Engine(draw(st.sampled_from([1.0, 2.0])), slots, 0.5, shared),
        serial_s={Stage.TRAIN: (draw(SECONDS) / 5,)}, scoring="group",
        sync=Sync(draw(st.sampled_from([0.0, 2.0]))), lag_bound=draw(st.sampled_from([1.0, 3.0])),
        steps=20, step_deviation=0.05, model_error=0.02, device_kind="worker",
    )  # fmt: skip


def width(gain: Estimate) -> float:
    return math.log(gain.high / gain.low)


@FEW
@given(stage_files())
def test_a_range_contains_its_point_and_no_step_is_shorter_than_its_learner(file: Tables) -> None:
    stages = file["stages"]
    learner_s = stages["train"] + stages.get("logprob", 0.0)
    for lever, value in (("train_speed", "1.3"), ("sync_speed", "2"), ("chunks", "4")):
        try:
            found = predict(source(file), [(lever, value)])
        except RltraceError:
            continue
        for one in (found.gain, found.goodput_gain, found.step_s):
            assert 0 < one.low <= one.value <= one.high < math.inf
        faster = 1.3 if lever == "train_speed" else 1.0
        own_s = stages["train"] / faster + stages.get("logprob", 0.0)
        if learner_s <= found.before_s:
            assert found.step_s.value >= own_s * (1 - 1e-9)


@FEW
@given(stage_files(), st.floats(1.05, 3.0), st.floats(1.05, 2.0))
def test_a_faster_trainer_is_never_slower(file: Tables, once: float, more: float) -> None:
    ask = predictor(source(file))
    first, second = (
        ask([("train_speed", f"{factor}")]).gain.value for factor in (once, once * more)
    )
    assert first >= 1
    assert second >= first * (1 - EVEN)


@FEW
@given(made())
def test_what_is_faster_or_more_of_a_run_is_never_slower(load: Workload) -> None:
    for move in (("train_speed", "1.25"), ("slots", "x2"), ("reward_latency", "0.5"),
                 ("sync_speed", "4"), ("env_latency", "0.5")):  # fmt: skip
        try:
            found = predict(lambda constants: load, [move])
        except RltraceError:
            continue
        assert found.gain.value >= 1


@FEW
@given(stage_files("colocated"))
def test_a_tail_that_is_stated_makes_a_range_no_wider_than_one_that_is_assumed(
    file: Tables,
) -> None:
    load = source(file)(Constants())
    tail_s = load.engine.token_s * float(load.batches[0].tokens.max())
    known = {"throughput_s": file["stages"]["rollout"] - tail_s}
    stated = {**file, "rollout": {**file["rollout"], **known}}
    moves = [("placement", "async"), ("split", "8:8"), ("lag_bound", "1")]
    assumed, told_so = (predict(source(one), moves).gain for one in (file, stated))
    assert told_so.value == pytest.approx(assumed.value, rel=1e-6)
    assert width(told_so) <= width(assumed) * (1 + 1e-9)


@FEW
@given(stage_files("colocated", "one-step-off"), st.floats(1.1, 3.0))
def test_a_stated_workload_errs_at_least_as_much_as_a_measured_one(
    file: Tables, factor: float
) -> None:
    move = [("train_speed", f"{factor}")]
    load = source(file)(Constants())
    seen = replace(load, steps=400, step_deviation=0.01, model_error=0.05)
    stated, measured = (predict(lambda constants, of=of: of, move).gain for of in (load, seen))
    assert stated.value == pytest.approx(measured.value)
    assert width(stated) >= width(measured)
    assert width(stated) > 0 or stated.value == 1


@FEW
@given(stage_files("colocated"))
def test_equal_inputs_have_equal_answers_by_every_way_to_ask(file: Tables) -> None:
    moves = [("placement", "one-step-off")]
    once, again = (predict(source(file), moves) for _ in range(2))
    # Unknown rates are no number, which equals nothing.
    assert repr(once) == repr(again) == repr(predictor(source(file))(moves))


@FEW
@given(SECONDS, st.floats(500, 60_000), st.floats(1.01, 4.0), st.sampled_from([0.0, 7e9, 70e9]))
def test_a_longer_cap_never_leaves_less_of_a_tail(
    rollout_s: float, cap: float, longer: float, parameters: float
) -> None:
    def tail_s(cap_tokens: float) -> float:
        model = {"model": {"parameters": parameters}} if parameters else {}
        file = told(stages={"rollout": rollout_s}, rollout={"cap_tokens": cap_tokens}, **model)
        load = file.workload(Constants())
        return load.engine.token_s * float(load.batches[0].tokens.max())

    assert 0 < tail_s(cap) <= tail_s(cap * longer) * (1 + 1e-9) <= rollout_s


def test_the_list_answers_as_a_single_question_does() -> None:
    file = {"placement": "colocated", "stages": {"rollout": 60, "train": 30, "logprob": 10},
            "devices": {"shared": 16}, "rollout": {"cap_tokens": 4096}}  # fmt: skip
    found, _ = ranked(source(file))
    single = [one for one in found if len(one.levers) == 1]
    assert len(single) > 3
    for one in single:
        name, _, value = one.levers[0].partition("=")
        assert name in LEVERS
        assert repr(predict(source(file), [(name, value)])) == repr(one)
