"""Levers and predictions: laws that must hold, ranges, and answers that are no."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.published import held, rows, scores_of
from rltrace.analysis.whatif.levers import NotApplicable
from rltrace.analysis.whatif.predict import Prediction, Source, predict, ranked
from rltrace.cli import main
from rltrace.testing.inside.analysis import LEVERS, Constants, replay
from rltrace.testing.inside.analysis import EngineModel as Engine
from rltrace.testing.inside.analysis import StepWorkload as Workload
from rltrace.testing.inside.analysis import SyncModel as Sync
from rltrace.testing.inside.analysis import predict_Estimate as Estimate
from rltrace.testing.inside.trace import WRONG_USAGE, RltraceError, Stage
from tests.analysis.whatif.played import ALIKE, batch, told, workload


def sole(load: Workload) -> Source:
    """A workload that no constant changes."""
    return lambda constants: load


def says(found: Prediction, word: str) -> bool:
    return any(word in sentence for sentence in found.rests_on)


@pytest.mark.parametrize(("rollout_s", "train_s"), [(60, 30), (30, 60), (50, 50), (90, 10)])
@pytest.mark.parametrize("part", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("counted", [False, True])
def test_splitting_what_scales_perfectly_gains_nothing(
    rollout_s: float, train_s: float, part: float, counted: bool
) -> None:
    file = told(stages={"rollout": rollout_s, "train": train_s}, devices={"shared": 16})
    constants = Constants(ALIKE)
    value = f"{16 * part:g}:{16 - 16 * part:g}" if counted else str(part)
    after = LEVERS["split"].change(file.workload(constants), value, constants)
    assert sum(after.devices.values()) == 16
    step_s = replay(after).step_s
    assert step_s == pytest.approx(max(rollout_s / part, train_s / (1 - part)))
    assert step_s >= rollout_s + train_s - 1e-6
    if part == rollout_s / (rollout_s + train_s):
        assert step_s == pytest.approx(rollout_s + train_s)


def test_what_does_not_scale_is_what_a_split_gains() -> None:
    file = told(stages={"rollout": 60, "train": 30}, devices={"shared": 16}, step_s=90)
    found = predict(file.workload, [("placement", "async")])
    assert (
        found.outcome == "may be either"
    )  # no lengths are stated, and no second size was measured
    assert found.gain.value > 1
    assert found.gain.low < found.gain.value < found.gain.high
    assert sum(found.devices.values()) == 16  # equal devices, so both gains are the same
    assert found.goodput_gain.value == pytest.approx(found.gain.value)
    assert says(found, "own_devices")


def test_a_split_can_be_slower_and_says_so() -> None:
    file = told(stages={"rollout": 90, "train": 30}, rollout={"throughput_s": 85},
                devices={"shared": 16}, step_s=120)  # fmt: skip
    found = predict(file.workload, [("placement", "one-step-off"), ("split", "2:14")])
    assert found.outcome == "slower"
    assert found.gain.high < 1


def test_more_devices_must_pay_for_themselves() -> None:
    tables: dict[str, Any] = {"stages": {"rollout": 60, "train": 55},
                              "devices": {"rollout": 8, "train": 8}}  # fmt: skip
    found = predict(told("one-step-off", **tables).workload, [("rollout_workers", "x2")])
    assert found.gain.value > 1.0
    assert found.goodput_gain.value < 1
    assert found.outcome == "slower"
    assert found.devices == {"rollout": 16, "train": 8}


def test_measured_steps_scatter_into_the_range_but_no_change_is_no_gain() -> None:
    load = workload(batch([6, 6]), train_s=3, steps=16, step_deviation=0.2, measured_step_s=9.0)
    halved = predict(sole(load), [("train_speed", "3")])
    assert halved.gain.low < 9 / 7 < halved.gain.high
    same = predict(sole(load), [("train_speed", "1")])
    assert same.outcome == "no gain"
    assert 0.97 < same.gain.low < same.gain.value == 1 < same.gain.high < 1.03
    assert same.step_s.low < 9 < same.step_s.high
    assert says(same, "16 measured steps")


def test_a_job_that_says_what_it_does_with_late_samples_is_predicted_more_sharply() -> None:
    load = workload(batch([1, 1, 1, 9]), train_s=2, steps=20, step_deviation=0.01)
    unsaid, dropped, kept = (
        predict(sole(replace(load, drops_stale=drops)), [("placement", "async")])
        for drops in (None, True, False)
    )
    assert dropped.stale_share > 0 == kept.stale_share
    assert dropped.goodput_gain.value < unsaid.goodput_gain.value < kept.goodput_gain.value
    widths = [math.log(p.goodput_gain.high / p.goodput_gain.low) for p in (unsaid, dropped, kept)]
    assert widths[0] > max(widths[1:])
    assert says(unsaid, "too late")
    assert not says(dropped, "too late")


def test_without_gpus_what_runs_at_once_shares_the_cores() -> None:
    load = workload(batch([6, 6]), train_s=6, placement="disaggregated", device_kind="worker",
                    devices={"rollout": 1.0, "train": 1.0})  # fmt: skip
    one, two, apart, waits = (
        predict(sole(replace(load, cores=cores, busy_cores=busy)), [("placement", "one-step-off")])
        for cores, busy in ((1, 1), (2, 1), (8, 1), (1, 0.1))
    )
    beside = Constants()["shared_cores"]  # all of the time in company
    assert apart.gain.value == pytest.approx(2)
    assert two.gain.low < two.gain.value < two.gain.high <= apart.gain.high * 1.15
    assert two.gain.value == pytest.approx(2 / beside)
    assert one.gain.value == pytest.approx(1 / beside)  # one core does one thing at a time
    assert 1.9 < waits.gain.value <= 2
    assert says(two, "shared_cores")
    assert not says(apart, "shared_cores")


def test_engines_that_compute_are_no_faster_for_being_more_than_the_cores() -> None:
    load = workload(batch([6, 6]), train_s=1, placement="disaggregated", device_kind="worker",
                    devices={"rollout": 2.0, "train": 1.0}, cores=2.0)  # fmt: skip
    load = replace(load, engine=replace(load.engine, workers=2.0))
    gains = [
        predict(sole(replace(load, busy_cores=busy)), [("rollout_workers", "x2")]).gain.value
        for busy in (1.0, 0.1)
    ]
    assert gains[0] < gains[1]


def test_without_gpus_a_pass_that_is_gone_leaves_others_more_company() -> None:
    """Generation goes on beside the pass; without that it does beside training."""
    load = workload(batch([2, 2]), placement="one-step-off", device_kind="worker",
                    devices={"rollout": 1.0, "train": 1.0},
                    serial_s={Stage.LOGPROB: (2.0,), Stage.TRAIN: (4.0,)})  # fmt: skip
    apart, own = (
        predict(sole(replace(load, cores=cores)), [("drop_logprob", "1")]) for cores in (8.0, 1.0)
    )
    assert apart.step_s.value == pytest.approx(4)
    assert own.step_s.value > 4.2


def test_more_at_once_than_was_seen_may_wait_for_a_place() -> None:
    load = workload(batch([1, 1, 1, 9]), train_s=2, steps=20, step_deviation=0.01,
                    drops_stale=False, model_error=0.0)  # fmt: skip
    limited = replace(load, engine=replace(load.engine, slots=8.0))
    unsure, sure = (predict(sole(one), [("no_barrier", "1")]) for one in (load, limited))
    assert unsure.gain.high / unsure.gain.low > sure.gain.high / sure.gain.low
    assert says(unsure, "seen to run at once")
    assert not says(sure, "seen to run at once")


def test_what_scatters_and_stays_is_more_of_a_shorter_step() -> None:
    learner = workload(batch([1]), batch([1]), serial_s={Stage.TRAIN: (2.0, 4.0)}, steps=25,
                       sync=Sync(10.0), step_deviation=0.5, model_error=0.0)  # fmt: skip
    tools = workload(batch([1], env_s=9), batch([1], env_s=11), train_s=3, steps=25,
                     step_deviation=0.5, model_error=0.0)  # fmt: skip
    stays = predict(sole(learner), [("sync_speed", "100")]).gain
    goes = predict(sole(tools), [("env_latency", "0.01")]).gain
    assert stays.value == pytest.approx(goes.value, rel=0.01)
    assert math.log(stays.high / stays.low) > 1.5 * math.log(goes.high / goes.low)


def test_gains_that_know_nothing_of_each_other_multiply() -> None:
    both = Estimate(1.0, 2.0, 4.0).and_then(Estimate(1.5, 3.0, 3.0))
    assert both.value == 6
    assert both.low == pytest.approx(3.0 / 2**0.4142, rel=1e-3)
    assert both.high == pytest.approx(12.0)


def test_processes_that_are_no_gpus_do_not_take_over_each_others_work() -> None:
    load = workload(batch([6, 6]), train_s=3, placement="one-step-off", device_kind="worker",
                    devices={"rollout": 1.0, "train": 1.0})  # fmt: skip
    found = predict(sole(load), [("placement", "colocated")])
    assert found.step_s.value == pytest.approx(9)
    assert found.outcome == "slower"
    on_gpus = predict(sole(replace(load, device_kind="GPU")), [("placement", "colocated")])
    assert on_gpus.devices == {"shared": 2.0}


JUDGED = batch([2, 2], verdict_s=4)


@pytest.mark.parametrize(
    ("load", "moves", "gain", "goodput"),
    [
        (workload(batch([10, 10]), train_s=4, placement="one-step-off"),  # hidden
         [("train_speed", "2")], 1, 1),
        (workload(batch([1, 1]), train_s=9, placement="one-step-off"),  # all that binds
         [("train_speed", "3")], 3, 3),
        (workload(JUDGED, scoring="batch"), [("reward_parallel", "x2")], 12 / 8, 12 / 8),
        (workload(JUDGED, scoring="batch"), [("reward_latency", "0")], 12 / 4, 12 / 4),
        (workload(JUDGED, scoring="batch"), [("reward_cache", "0.5")], 12 / 8, 12 / 8),
        (workload(JUDGED, switch_s=3.0), [("no_switch", "1")], 15 / 12, 15 / 12),
        (workload(batch([4, 4], verdict_s=2), train_s=4),
         [("train_speed", "2"), ("reward_latency", "0")], 12 / 6, 12 / 6),
        (workload(batch([1, 1]), placement="one-step-off",
                  serial_s={Stage.REFERENCE: (2.0,), Stage.TRAIN: (6.0,)}),
         [("reference_side", "actor")], 8 / 6, 8 / 6),
        (workload(batch([2, 2, 2, 10]), train_s=1, useful_tokens=16.0),  # tokens are cut
         [("tail_cap", "4")], 11 / 5, 11 / 5 * 10 / 16),
        (workload(batch([1, 1, 1, 1], env_s=[1, 1, 1, 29]), train_s=4),  # a quarter is lost
         [("env_cap", "5")], 34 / 10, 34 / 10 * 3 / 4),
        (workload(batch([1, 3, 2, 2]), train_s=4, rest_s=1),  # sequences run at once
         [("samples", "x2")], 8 / 12, 2 * 8 / 12),
    ],
)  # fmt: skip
def test_a_lever_moves_its_own_part(
    load: Workload, moves: list[tuple[str, str]], gain: float, goodput: float
) -> None:
    found = predict(sole(load), moves)
    assert found.gain.value == pytest.approx(gain)
    assert found.goodput_gain.value == pytest.approx(goodput)
    assert found.outcome == ("no gain" if goodput == 1 else "faster")


def test_rates_are_for_a_device_second_and_a_dollar() -> None:
    file = told(stages={"rollout": 6, "train": 2}, useful_tokens=8000,
                devices={"rollout": 2, "train": 2, "usd_per_hour": 3.6})  # fmt: skip
    found = predict(file.workload, [("train_speed", "2")])
    assert found.useful_tokens_per_device_s.value == pytest.approx(8000 / 7 / 4)
    assert found.useful_tokens_per_usd.value == pytest.approx(8000 / 7 / 4 * 1000)
    unknown = predict(told(stages={"rollout": 6, "train": 2}).workload, [("train_speed", "2")])
    assert math.isnan(unknown.useful_tokens_per_device_s.value)


def test_another_mechanism_adds_no_more_to_its_transfer_than_the_jobs_own() -> None:
    sync = Sync(3.0, 0.0, 8e6)
    load = workload(batch([4, 4]), placement="disaggregated", sync=sync)
    seconds = [
        LEVERS["sync"].change(one, "direct", Constants()).sync.seconds
        for one in (load, replace(load, sync=replace(sync, fixed_s=0.01)))
    ]
    assert seconds[0] > 0.1 > seconds[1] > 0.01


def test_mechanisms_of_sync_are_as_fast_as_they_were_published() -> None:
    file = told("disaggregated", stages={"rollout": 10, "train": 10, "sync": 60},
                model={"parameters": 70e9})  # fmt: skip
    by_name = {
        name: predict(file.workload, [("sync", name)]).gain.value
        for name in ("naive", "delta", "bucketed", "relay", "direct")
    }
    assert list(by_name.values()) == sorted(by_name.values())
    # 140 GB at 2.5 GB/s and a latency of 0.2 s.
    assert by_name["naive"] == pytest.approx(80 / (20 + 56.2))


def test_changes_take_as_long_as_the_learners_devices_compare_all_bytes() -> None:
    def sync_s(devices: int, **sync: float) -> float:
        file = told("disaggregated", stages={"sync": 600}, model={"parameters": 8e9}, sync=sync,
                    devices={"rollout": 8, "train": devices})  # fmt: skip
        return predict(file.workload, [("sync", "delta")]).step_s.value - 0.2

    known = sync_s(8, changed_share=0.0)
    assert known == pytest.approx(16 / 8 / 0.54, rel=0.01)
    assert sync_s(32, changed_share=0.0) == pytest.approx(known / 4, rel=0.01)
    assert sync_s(8, changed_share=0.1) > known + 0.3


def test_a_step_of_which_nothing_would_be_left_has_no_gain() -> None:
    file = told(stages={"switch": 0.5})
    with pytest.raises(RltraceError, match="nothing would be left"):
        predict(file.workload, [("no_switch", "1")])
    assert "no_switch=1" not in [one.levers[0] for one in ranked(file.workload)[0]]


def test_a_number_of_slots_is_of_the_jobs_own_sequences() -> None:
    file = told(stages={"rollout": 40, "train": 10}, devices={"shared": 2},
                rollout={"prompts": 2, "samples": 8, "engines": 1, "slots": 1})  # fmt: skip
    by_number, by_factor = (predict(file.workload, [("slots", way)]).gain for way in ("2", "x2"))
    assert by_number == by_factor
    assert by_number.value > 1.2


def test_a_faster_way_than_the_one_in_use_is_never_slower() -> None:
    file = told("disaggregated", stages={"rollout": 10, "train": 10, "sync": 1},
                model={"parameters": 70e9})  # fmt: skip
    assert predict(file.workload, [("sync", "naive")]).outcome == "no gain"


def test_the_ranked_table_has_the_best_first_and_only_what_applies() -> None:
    file = told(stages={"rollout": 60, "train": 30, "logprob": 10}, devices={"shared": 16})
    found, _ = ranked(file.workload)
    kinds = [one.outcome == "may be either" for one in found]
    assert kinds == sorted(kinds)  # what rests on assumptions comes after what is sure
    for kind in (False, True):
        gains = [
            one.goodput_gain.value for one in found if (one.outcome == "may be either") == kind
        ]
        assert gains == sorted(gains, reverse=True)
    moved = {one.levers[0].partition("=")[0] for one in found}
    assert "drop_logprob" in moved
    assert not moved & {"reward_parallel", "env_latency", "lag_bound", "rollout_workers", "sync"}


def test_the_ranked_table_has_nothing_that_is_so_already() -> None:
    file = told("async", stages={"rollout": 60, "train": 30}, devices={"rollout": 8, "train": 8})
    now = file.workload(Constants()).lag_bound
    found, untold = ranked(file.workload)
    tried = {*untold, *(lever for one in found for lever in one.levers)}
    assert f"{now:g}" in LEVERS["lag_bound"].tries
    assert any(one.startswith("lag_bound=") for one in tried)
    assert f"lag_bound={now:g}" not in tried


@pytest.mark.parametrize(
    ("lever", "value", "why"),
    [
        ("speed", "2", "there is no lever 'speed'"),
        ("placement", "moon", "placement must be one of"),
        ("placement", "colocated", "is colocated already"),
        ("split", "3:4", "add up to 16"),
        ("split", "0", "between 0 and 1"),
        ("tail_cap", "-4", "tail_cap must be"),
        ("env_cap", "p100", "env_cap must be"),
        ("train_speed", "-1", "above 0"),
        ("slots", "2", "no limit of sequences at once was seen"),
        ("reward_cache", "0.5", "no time of rewards"),
        ("lag_bound", "2", "has no bound"),
        ("rollout_workers", "x2", "share their devices"),
        ("sync", "bird", "sync must be one of"),
        ("no_barrier", "0", "no_barrier must be 1"),
        *(("slots", value, "slots must be a number") for value in ("nan", "inf", "xnan", "many")),
        ("devices", "x-1", "devices must be above 0"),
        ("devices", "x0", "devices must be above 0"),
        ("devices", "1e308", "devices must be at most 10,000 times what there is"),
        ("split", "nan:nan", "split must be a number"),
        ("tail_cap", "pnan", "tail_cap must be a number"),
    ],
)
def test_nonsense_and_what_does_not_apply_are_one_sentence(
    lever: str, value: str, why: str
) -> None:
    """What a lever needs is told of values that make sense: no limit of slots is known here."""
    file = told(stages={"rollout": 60, "train": 30}, devices={"shared": 16})
    with pytest.raises(RltraceError, match=why) as error:
        predict(file.workload, [(lever, value)])
    assert "\n" not in str(error.value)
    if " must be " in why:
        assert error.value.exit_code == WRONG_USAGE


@pytest.mark.parametrize("name", ["reward_async", "no_switch", "speculative", "slots"])
def test_a_lever_says_what_is_missing(name: str) -> None:
    bare = workload(batch([0.5, 0.5]), serial_s={}, engine=Engine(1.0, math.inf, 1.0, 0.0, True, 0))
    with pytest.raises(NotApplicable, match=r"seen|known"):
        LEVERS[name].moved(bare, LEVERS[name].tries[0], Constants())


def test_the_page_lists_every_lever_and_no_other() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "levers.md"
    section = page.read_text("utf-8").partition("## Levers\n")[2].partition("\n## ")[0]
    names = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(names))) == sorted(LEVERS)


def test_published_breakdowns_are_predicted() -> None:
    scores = scores_of(list(rows()))
    assert scores["steps"]["cases"] >= 35
    assert scores["weights"]["cases"] >= 30
    assert held(scores["steps"])
    assert held(scores["weights"])
    assert scores["steps"]["inverted"] == 0


def test_the_command_answers_in_words_and_in_json(tmp_path: Path) -> None:
    path = tmp_path / "stages.toml"
    path.write_text("[stages]\nrollout = 60\ntrain = 30\n[devices]\nshared = 8\n")

    def asked(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["whatif", "--stages", str(path), *words])
        return result.exit_code, result.output

    code, text = asked()
    assert (code, "placement=async" in text) == (0, True)
    code, text = asked("--lever", "placement=async", "--json")
    assert (code, '"gain"' in text) == (0, True)
    assert asked("--lever", "train_speed=2")[0] == 0
    for words, says in (
        (("--lever", "speed"), "speed"),
        (("--lever", "placement=async", "--lever", "placement=colocated"), "is there twice"),
        (("--lever", "placement"), "must be placement=VALUE"),
        (("x",), ""),
    ):
        code, text = asked(*words)
        assert (code, says in text) == (2, True)
