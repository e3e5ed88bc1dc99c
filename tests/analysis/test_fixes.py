"""Which moves are fixes of a run: none that changes nothing in it, in the words of what is slow."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from rltrace.testing import Process, process, run_of, stating
from rltrace.testing.inside.analysis import (
    ENV_REWARD,
    LEARNER,
    ROLLOUT,
    TAIL,
    WRAP_SYNC,
    Figure,
    Summary,
    not_yet,
    settings_for,
    summarize,
)
from rltrace.testing.inside.analysis import FrameworkSetting as Setting
from rltrace.testing.inside.analysis import playbook_moves as moves
from rltrace.testing.inside.analysis import predict_Estimate as Estimate
from rltrace.testing.inside.report import (
    fixes_part,
    fixes_section,
    gain_words,
    markdown,
    sentences,
    terminal,
)
from rltrace.testing.inside.trace import Stage
from tests.analysis.made import not_none, rows, slow_updates
from tests.analysis.walls.walled import STEPS, job, samples, summary_of, uses, verdicts


def moves_of(found: Summary) -> list[str]:
    return [fix.move for fix in found.verdict.fixes]


@pytest.fixture(scope="module")
def slow_verdicts(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """Samples of 2 s are judged for 6 s of a step."""
    driver = samples(job(rollout=2, reward=6, train=2), [2.0, 1.0, 1.0, 1.0])
    path = tmp_path_factory.mktemp("slow")
    return summary_of(path, verdicts(driver, 4, lambda n, i: i % 2), predict=True)


def taking_turns(rollout_s: int) -> list[Process]:
    """A generator and a learner in a process each; no framework has settings."""
    cut = [10 * n + rollout_s for n in range(STEPS)]
    learner = process("learner", *((("step", n), 10 * n, 10 * n + 10) for n in range(STEPS)),
                      *((Stage.TRAIN, cut[n], 10 * n + 10) for n in range(STEPS)))  # fmt: skip
    spans = [(Stage.ROLLOUT, 10 * n, cut[n]) for n in range(STEPS)]
    return [process("rollout", *spans), learner]


def mixed() -> Process:
    """Tools take the time, not verdicts."""
    driver = samples(job(rollout=2, env=5.9, reward=0.1, train=2), [2.0] * 4)
    return verdicts(driver, 4, lambda n, i: i % 2)


VERDICTS, TOOLS = {"verdict", "reward"}, {"tools", "environment"}
NETWORK = {"another transport", "another checkpoint engine", "send what changed"}


@pytest.mark.parametrize(
    ("driver", "words", "advised"),
    [
        (job(rollout=2, env=6, train=2), VERDICTS, False),
        (mixed(), VERDICTS, False),
        (job(rollout=2, train=8), {"drop the log-prob pass", "the reference pass"}, False),
        (job(rollout=2, reference=4, train=4), {"drop the reference pass"}, True),
        (job(rollout=2, value=4, train=4), {"drop the critic"}, True),
        (job(rollout=2, train=8), {"drop the critic"}, False),
        # A network is not made faster for what is no load for it.
        (slow_updates(10**6), NETWORK, False),
        (slow_updates(4 * 10**9), NETWORK, True),
    ],
)
def test_what_is_slow_has_its_moves_and_what_was_not_seen_none(
    tmp_path: Path, driver: Process, words: set[str], advised: bool
) -> None:
    made = run_of(tmp_path, driver)
    if words == {"drop the critic"}:
        made = stating(made, {"adapter": "openrlhf"})
    found = moves_of(summarize(made))
    assert any(word in move for word in words for move in found) == advised


def test_what_changes_nothing_or_gains_nothing_for_what_it_costs_is_no_fix(
    tmp_path: Path, slow_verdicts: Summary
) -> None:
    found = moves_of(slow_verdicts)
    assert found
    assert not [move for move in found if any(word in move for word in TOOLS)]
    for fix in slow_verdicts.verdict.fixes:
        assert fix.setting or fix.goodput_gain is not None
        assert gain_words(fix.goodput_gain).split()[0] not in ("+0", "-0")
    assert not set(found) & set(slow_verdicts.verdict.no_gain)
    # Twice the learners cost more than they gain, as do twice the generators.
    alone = summarize(run_of(tmp_path, *taking_turns(4))).verdict
    assert not_none(alone.first).name == LEARNER
    assert alone.not_worth_it
    assert not set(alone.not_worth_it) & {fix.move for fix in alone.fixes}
    gains = {fix.lever: fix.goodput_gain.value for fix in alone.fixes if fix.goodput_gain}
    assert all(gain > 1 for gain in gains.values())
    assert gains["placement=one-step-off"] > 1.1
    assert gains["train_speed=1.5"] > 1.1
    assert not alone.do_nothing
    assert f"more than it gains: {alone.not_worth_it[0]}" in str(
        not_none(fixes_section(alone)).notes
    )
    # A move against two walls is one fix.
    both = summarize(run_of(tmp_path / "both", *taking_turns(5)))
    assert {wall.name for wall in both.verdict.binding} == {LEARNER, ROLLOUT}
    assert moves_of(both).count("overlap generation with training") == 1


def test_first_is_what_surely_gains_and_what_an_option_makes(tmp_path: Path) -> None:
    driver = samples(job(rollout=5, reward=3, train=2), [5.0] + [1.0] * 7)
    run = run_of(tmp_path, verdicts(driver, 8, lambda n, i: i % 2))
    made = stating(run, {"adapter": "openrlhf"})
    gaining = [fix for fix in summarize(made).verdict.fixes if fix.gains]
    order = [(fix.may_lose, not fix.setting) for fix in gaining]
    assert len({*order}) == 2
    assert order == sorted(order)


def test_what_shortens_all_of_generation_gains_more_than_its_tail_costs(tmp_path: Path) -> None:
    driver = samples(job(rollout=8, train=2), [8.0] + [3.0] * 7)
    found = summary_of(tmp_path, driver, predict=True)
    cost = {wall.name: wall.cost.share for wall in found.verdict.walls}
    best = found.verdict.fixes[0]
    assert (best.wall, best.lever) == (TAIL, "speculative=1")
    gain = not_none(best.goodput_gain)
    assert gain.value > 1 / (1 - cost[TAIL]) + 0.1
    assert gain.high < 1 / (1 - cost[TAIL] - cost[ROLLOUT])


def test_nothing_gains_more_than_the_stage_costs_that_it_shortens(tmp_path: Path) -> None:
    driver = samples(job(rollout=3, train=2, switch=5), [3.0] * 4)
    found = summary_of(tmp_path, driver, predict=True).verdict
    gain = next(not_none(fix.goodput_gain) for fix in found.fixes if fix.lever == "no_switch=1")
    assert (gain.value, gain.high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert gain.low < 1.9


def test_where_no_fix_is_known_it_is_said_against_what(slow_verdicts: Summary) -> None:
    """What takes most of a step is not to be left so."""
    assert not [one for one in sentences(slow_verdicts) if "No fix is known" in one]
    none = replace(slow_verdicts.verdict, fixes=(), no_gain=())
    (line,) = not_none(fixes_section(none)).lines
    assert line.startswith("No fix is known: no move against env/reward has an option")
    told = sentences(replace(slow_verdicts, verdict=none))
    assert line in list(told)
    assert "No fix is known" in fixes_part(replace(slow_verdicts, verdict=none))
    idle = replace(none, no_gain=("score beside other work",))
    (line,) = not_none(fixes_section(idle)).lines
    assert "no known move against env/reward" in line
    told = sentences(replace(slow_verdicts, verdict=idle))
    assert [one for one in told if one.startswith("No fix is known: no known move")]


@pytest.mark.parametrize(
    ("phases", "wanted"),
    [((), "gather, convert"), ((("convert", 1.0), ("load", 5.0)), "“load” (5.00 s)")],
)
def test_where_no_fix_is_known_it_is_said_what_to_look_at(
    tmp_path: Path, phases: tuple[tuple[str, float], ...], wanted: str
) -> None:
    found = summary_of(tmp_path, slow_updates(10**6)).verdict
    figures = tuple(Figure(f"in phase {name}", took_s, "s an update", 6) for name, took_s in phases)
    walls = tuple(replace(w, evidence=(*w.evidence, *figures)) for w in found.walls)
    none = replace(found, first=walls[0], fixes=(), no_gain=(), not_worth_it=())
    [line] = not_none(fixes_section(none)).lines
    assert line.startswith("No fix is known: 1.00 MB are little for a link")
    assert "most of the 6.00 s of an update" in line
    assert wanted in line


def test_a_small_gain_is_one_whatever_its_effort(slow_verdicts: Summary) -> None:
    found = slow_verdicts.verdict
    fix = next(fix for fix in found.fixes if fix.goodput_gain is not None)
    small = replace(fix, goodput_gain=Estimate(1.02, 1.05, 1.08), effort=3)
    assert not replace(found, fixes=(small,)).do_nothing
    none = replace(fix, goodput_gain=Estimate(1.0, 1.01, 1.02), effort=1)
    assert replace(found, fixes=(none,)).do_nothing


def test_of_two_stages_the_one_that_takes_the_time_is_named(tmp_path: Path) -> None:
    driver = job(rollout=2, env=5.99, reward=0.01, train=2)
    found = summary_of(tmp_path, samples(driver, [2.0] * 4))
    (wall,) = (one for one in found.verdict.walls if one.name == ENV_REWARD)
    assert wall.because.startswith("what a step saves without env")
    assert wall.symptom.startswith("tools take long")


@pytest.mark.parametrize(
    ("setting", "value", "sized"),
    [
        ("max_lag", 1, "bound the lag"),  # "bound the lag (at most 1) (max_lag=1)" says it twice
        ("sync_every", 4, "bound the lag (at most 1)"),
        ("", None, "bound the lag (at most 1)"),
    ],
)
def test_a_size_that_the_setting_states_is_not_said_twice(
    slow_verdicts: Summary, setting: str, value: int | None, sized: str
) -> None:
    fix = replace(slow_verdicts.verdict.fixes[0], move="bound the lag", size="at most 1",
                  lever="lag_bound=1", setting=setting, value=value)  # fmt: skip
    assert fix.sized == sized


def test_a_fix_says_how_far_its_lever_was_moved(tmp_path: Path) -> None:
    driver = samples(job(rollout=2, reward=6, train=2), [2.0, 2.0, 2.0, 2.0])
    places = [(n, i) for n in range(STEPS) for i in range(4)]
    begins = [10 * n + 2 + 1.5 * i for n, i in places]
    rows(driver, "rewards", start_s=begins, end_s=[begin + 1.5 for begin in begins],
         trajectory=[1000 * n + i + 1 for n, i in places], value=[float(i % 2) for _, i in places],
         outcome=0)  # fmt: skip
    found = summary_of(tmp_path, uses(driver, 4), predict=True)
    sized = [fix.sized for fix in found.verdict.fixes]
    assert "cache rewards (half of them)" in sized
    # What is there or is not has no size.
    assert "do not wait for the slowest samples" in sized
    assert sized[0] == "more reward workers (x4)"
    # The table has the numbers of an experiment.
    table = not_none(not_none(fixes_section(found.verdict)).grid).rows
    assert [row[0] for row in table] == [f"{n}. {one}" for n, one in enumerate(sized, 1)]
    out = io.StringIO()
    terminal.render(found, Console(file=out, width=120))
    for shown in (out.getvalue(), markdown.render(found), fixes_part(found)):
        assert "1. more reward workers (x4)" in shown


def test_what_a_prediction_is_for_is_set_whatever_the_run_has() -> None:
    """The lag that the run would have by default is not the lag that was predicted; an option of a
    pass that serves one update says how many it may serve."""
    by_name = {one.move: one for one in moves()}
    known = settings_for("rltrace.trainer", "", by_name["do not wait for the slowest samples"])
    run: dict[str, object] = {"placement": "disaggregated", "max_lag": 4}
    told = [(one.option, one.needs) for one in not_yet(known, "", run)]
    assert told == [("placement", {"max_lag": 1})]
    assert [one.needs for one in not_yet(known, "", {**run, "max_lag": 1})] == [{}]
    known = settings_for("trl", "1.16.0", by_name["drop the log-prob pass"])
    run = {"--use_vllm": True, "--vllm_importance_sampling_correction": True}
    for iterations, needs in ((2, {"--num_iterations": 1}), (1, {})):
        found = not_yet(known, "", {**run, "--num_iterations": iterations})
        assert [one.needs for one in found] == [needs]


def test_a_run_that_states_its_settings_is_offered_no_others() -> None:
    def offered(stated: dict[str, object]) -> set[str]:
        made = [one for move in moves() for one in settings_for("trl", "1.16.0", move)]
        return {one.option for one in made if one.is_of(stated, stated)}

    of_async = {"--max_staleness", "--token_budget"}
    correction = {"--vllm_importance_sampling_correction"}
    rloo: dict[str, object]
    rloo = {"--num_generations": 4, "--use_vllm": False, "--deepspeed": None}
    grpo = {**rloo, "--vllm_importance_sampling_correction": True}
    assert offered({}) >= of_async | correction
    assert offered(rloo) & (of_async | correction) == set()
    assert offered(rloo) >= {"--num_generations", "--use_vllm", "--deepspeed"}
    assert not offered(grpo) & correction  # it does nothing without vLLM
    assert offered({**grpo, "--use_vllm": True}) >= correction
    assert offered({**rloo, "--max_staleness": 4, "--token_budget": None}) >= of_async
    # What is stated nowhere is offered all the same.
    assert Setting("weight sync", "", WRAP_SYNC, True, "", "", ()).is_of(rloo, rloo)


def test_an_option_that_a_configuration_lacks_is_offered_beside_others_of_its_part() -> None:
    """A job of RLinf with Megatron has no FSDP; Hydra adds a key after "++" where its part is."""

    def offered(stated: dict[str, object]) -> set[str]:
        made = [one for move in moves() for one in settings_for("rlinf", "0.3", move)]
        return {one.option for one in made if one.is_of(stated, stated)}

    fsdp, added = "actor.fsdp_config.use_liger_kernel", "++algorithm.importance_sampling_fix"
    assert offered({}) >= {fsdp, added}
    megatron: dict[str, object] = {"actor.training_backend": "megatron", "algorithm.group_size": 8}
    assert offered(megatron) == {"algorithm.group_size", added}
    assert offered({**megatron, fsdp: None}) >= {fsdp}
    assert added not in offered({fsdp: False})
