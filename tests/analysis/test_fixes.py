"""Which moves are fixes of a run: none that changes nothing in it, in the words of what is slow."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from rltrace.analysis.fixes import not_yet
from rltrace.testing.inside.analysis import (
    ENV_REWARD,
    LEARNER,
    ROLLOUT,
    TAIL,
    WRAP_SYNC,
    Figure,
    Setting,
    Summary,
    settings_for,
    summarize,
)
from rltrace.testing.inside.analysis import playbook_moves as moves
from rltrace.testing.inside.analysis import predict_Estimate as Estimate
from rltrace.testing.inside.report import (
    evidence,
    fixes_part,
    fixes_section,
    gain_words,
    markdown,
    terminal,
)
from rltrace.testing.inside.trace import Stage
from rltrace.testing.made import process, rows, run_of
from tests.analysis.walls.walled import STEPS, job, samples, summary_of, uses, verdicts


def moves_of(found: Summary) -> list[str]:
    return [fix.move for fix in found.verdict.fixes]


def slow_verdicts(path: Path) -> Summary:
    """Samples of 2 s are judged for 6 s of a step."""
    driver = samples(job(rollout=2, reward=6, train=2), [2.0, 1.0, 1.0, 1.0])
    return summary_of(path, verdicts(driver, 4, lambda n, i: i % 2), predict=True)


def test_what_is_slow_has_its_name(tmp_path: Path) -> None:
    found = moves_of(slow_verdicts(tmp_path))
    assert found
    assert not [move for move in found if "tools" in move or "environment" in move]
    tools = moves_of(summary_of(tmp_path / "tools", job(rollout=2, env=6, train=2), predict=True))
    assert not [move for move in tools if "verdict" in move or "reward" in move]


def test_a_stage_that_was_not_seen_is_not_changed(tmp_path: Path) -> None:
    without = moves_of(summary_of(tmp_path / "without", job(rollout=2, train=8), predict=True))
    assert "drop the log-prob pass" not in without
    assert "drop the reference pass" not in without
    driver = job(rollout=2, reference=4, train=4)
    assert "drop the reference pass" in moves_of(
        summary_of(tmp_path / "with", driver, predict=True)
    )


def test_a_loop_of_its_own_whose_learner_binds_is_told_what_the_what_if_predicts(
    tmp_path: Path,
) -> None:
    """A generator and a learner in a process each, which take turns; no framework has settings."""
    spans = [(Stage.ROLLOUT, 10 * n, 10 * n + 4) for n in range(STEPS)]
    trains = [(Stage.TRAIN, 10 * n + 4, 10 * n + 10) for n in range(STEPS)]
    steps = [(("step", n), 10 * n, 10 * n + 10) for n in range(STEPS)]
    parts = process("rollout", *spans), process("learner", *steps, *trains)
    found = summarize(run_of(tmp_path, *parts)).verdict
    assert found.first is not None
    assert found.first.name == LEARNER
    gains = {fix.lever: fix.goodput_gain.middle for fix in found.fixes if fix.goodput_gain}
    assert gains["placement=one-step-off"] > 1.1
    assert gains["train_speed=1.5"] > 1.1
    assert not found.do_nothing


def test_what_gains_nothing_for_what_it_costs_is_no_fix(tmp_path: Path) -> None:
    """Twice the learners cost more than they gain, as do twice the generators."""
    spans = [(Stage.ROLLOUT, 10 * n, 10 * n + 4) for n in range(STEPS)]
    trains = [(Stage.TRAIN, 10 * n + 4, 10 * n + 10) for n in range(STEPS)]
    steps = [(("step", n), 10 * n, 10 * n + 10) for n in range(STEPS)]
    parts = process("rollout", *spans), process("learner", *steps, *trains)
    found = summarize(run_of(tmp_path, *parts)).verdict
    assert found.slower
    assert not set(found.slower) & {fix.move for fix in found.fixes}
    assert all(fix.goodput_gain.middle > 1 for fix in found.fixes if fix.goodput_gain)
    section = fixes_section(found)
    assert section is not None
    assert f"Predicted to be slower for what it costs: {found.slower[0]}" in str(section.notes)


def test_verdicts_are_not_made_faster_where_tools_take_the_time(tmp_path: Path) -> None:
    driver = samples(job(rollout=2, env=5.9, reward=0.1, train=2), [2.0] * 4)
    found = moves_of(summary_of(tmp_path, verdicts(driver, 4, lambda n, i: i % 2), predict=True))
    assert not [move for move in found if "verdict" in move or "reward" in move]


def test_a_move_against_two_walls_is_one_fix(tmp_path: Path) -> None:
    spans = [(Stage.ROLLOUT, 10 * n, 10 * n + 5) for n in range(STEPS)]
    trains = [(Stage.TRAIN, 10 * n + 5, 10 * n + 10) for n in range(STEPS)]
    steps = [(("step", n), 10 * n, 10 * n + 10) for n in range(STEPS)]
    found = summary_of(
        tmp_path, process("rollout", *spans), process("learner", *steps, *trains), predict=True
    )
    assert {wall.name for wall in found.verdict.binding} == {LEARNER, ROLLOUT}
    assert moves_of(found).count("overlap generation with training") == 1


def test_what_shortens_all_of_generation_gains_more_than_its_tail_costs(tmp_path: Path) -> None:
    driver = samples(job(rollout=8, train=2), [8.0] + [3.0] * 7)
    found = summary_of(tmp_path, driver, predict=True)
    cost = {wall.name: wall.cost.share for wall in found.verdict.walls}
    best = found.verdict.fixes[0]
    assert (best.wall, best.lever) == (TAIL, "speculative=1")
    assert best.goodput_gain is not None
    assert best.goodput_gain.middle > 1 / (1 - cost[TAIL]) + 0.1
    assert best.goodput_gain.high < 1 / (1 - cost[TAIL] - cost[ROLLOUT])


def test_nothing_gains_more_than_the_stage_costs_that_it_shortens(tmp_path: Path) -> None:
    found = summary_of(
        tmp_path, samples(job(rollout=3, train=2, switch=5), [3.0] * 4), predict=True
    )
    fix = next(fix for fix in found.verdict.fixes if fix.lever == "no_switch=1")
    assert fix.goodput_gain is not None
    assert fix.goodput_gain.middle == pytest.approx(2.0)
    assert fix.goodput_gain.high == pytest.approx(2.0)
    assert fix.goodput_gain.low < 1.9


def test_to_do_nothing_is_said_of_the_walls_that_bind(tmp_path: Path) -> None:
    found = slow_verdicts(tmp_path)
    none = replace(found.verdict, fixes=(), idle=("score beside other work",))
    section = fixes_section(none)
    assert section is not None
    assert "none of the known moves against env/reward latency is" in section.lines[0]
    told = list(evidence(replace(found, verdict=none)))
    wanted = "no known move against env/reward latency is predicted to gain anything"
    assert f"no fix is known: {wanted}" in told  # what takes most of a step is not to be left so


def test_a_small_gain_is_one_whatever_its_effort(tmp_path: Path) -> None:
    found = slow_verdicts(tmp_path).verdict
    fix = next(fix for fix in found.fixes if fix.goodput_gain is not None)
    small = replace(fix, goodput_gain=Estimate(1.02, 1.05, 1.08), effort=3)
    assert not replace(found, fixes=(small,)).do_nothing
    none = replace(fix, goodput_gain=Estimate(1.0, 1.01, 1.02), effort=1)
    assert replace(found, fixes=(none,)).do_nothing


@pytest.mark.parametrize(("size_bytes", "advised"), [(10**6, False), (4 * 10**9, True)])
def test_a_network_is_not_made_faster_for_what_is_no_load_for_it(
    tmp_path: Path, size_bytes: int, advised: bool
) -> None:
    learner = job(rollout=2, train=2, sync=6)
    starts = [10.0 * n + 4 for n in range(STEPS)]
    rows(learner, "syncs", start_s=starts, end_s=[s + 6 for s in starts], role=[0] * STEPS,
         version=list(range(STEPS)), bytes=[size_bytes] * STEPS)  # fmt: skip
    found = moves_of(summary_of(tmp_path, samples(learner, [2.0] * 4), predict=True))
    network = {"another transport", "another checkpoint engine", "send what changed"}
    assert bool(network & set(found)) == advised


@pytest.mark.parametrize(
    ("phases", "wanted"),
    [
        ((), "look at what it does besides (gathering, converting, waiting for engines, loading), "
         "which a span with a `phase` around each would tell"),
        ((("convert", 1.0), ("load", 5.0)), "the longest phase is “load” (5.00 s): look at that"),
    ],
)  # fmt: skip
def test_where_no_fix_is_known_it_is_said_why_and_what_to_look_at(
    tmp_path: Path, phases: tuple[tuple[str, float], ...], wanted: str
) -> None:
    learner = job(rollout=2, train=2, sync=6)
    starts = [10.0 * n + 4 for n in range(STEPS)]
    rows(learner, "syncs", start_s=starts, end_s=[s + 6 for s in starts], role=[0] * STEPS,
         version=list(range(STEPS)), bytes=[10**6] * STEPS)  # fmt: skip
    found = summary_of(tmp_path, samples(learner, [2.0] * 4)).verdict
    figures = tuple(Figure(f"in phase {name}", took_s, "s an update", 6) for name, took_s in phases)
    walls = tuple(replace(w, evidence=(*w.evidence, *figures)) for w in found.walls)
    none = replace(found, first=walls[0], fixes=(), idle=(), slower=())
    said = "1.00 MB are little for a link, so most of the 6.00 s of an update is likely spent on"
    section = fixes_section(none)
    assert section is not None
    [line] = section.lines
    assert line.startswith(f"No fix is known: {said}")
    assert line.endswith(f"{wanted}.")


def test_a_wall_without_a_move_that_applies_says_so(tmp_path: Path) -> None:
    found = slow_verdicts(tmp_path)
    none = replace(found.verdict, fixes=(), idle=())
    section = fixes_section(none)
    assert section is not None
    assert "no move against env/reward latency has a setting in this job" in section.lines[0]
    told = [one for one in evidence(replace(found, verdict=none)) if "no fix is known" in one]
    assert [f"{line[:1].upper()}{line[1:]}." for line in told] == list(section.lines)
    assert "No fix is known" in str(fixes_part(none).body)
    assert not [one for one in evidence(found) if "no fix is known" in one]


def test_of_two_stages_the_one_that_takes_the_time_is_named(tmp_path: Path) -> None:
    driver = job(rollout=2, env=5.99, reward=0.01, train=2)
    found = summary_of(tmp_path, samples(driver, [2.0] * 4))
    (wall,) = (one for one in found.verdict.walls if one.name == ENV_REWARD)
    assert wall.because.startswith("the part of the step that would fall away if env took no time")
    assert wall.symptom.startswith("tools take long")


def test_a_critic_is_dropped_only_where_there_is_one(tmp_path: Path) -> None:
    for name, seconds, advised in (
        ("without", {"rollout": 2, "train": 8}, False),
        ("with", {"rollout": 2, "value": 4, "train": 4}, True),
    ):
        run = run_of(tmp_path / name, job(**seconds))
        run.processes[0] = replace(run.processes[0], adapter="openrlhf")
        assert ("drop the critic" in moves_of(summarize(run))) == advised


def test_what_is_predicted_to_change_nothing_is_no_fix(tmp_path: Path) -> None:
    found = slow_verdicts(tmp_path)
    for fix in found.verdict.fixes:
        assert fix.setting or fix.goodput_gain is not None
        assert gain_words(fix.goodput_gain).split()[0] not in ("+0", "-0")
    assert not set(moves_of(found)) & set(found.verdict.idle)


def test_the_box_and_the_table_have_one_figure_and_the_numbers_of_an_experiment(
    tmp_path: Path,
) -> None:
    found = slow_verdicts(tmp_path)
    section = fixes_section(found.verdict)
    assert section is not None
    assert section.grid is not None
    for number, (fix, row) in enumerate(zip(found.verdict.fixes, section.grid.rows), 1):  # noqa: B905 (five are shown)
        assert row[0] == f"{number}. {fix.sized}"
    first = next(line for line in evidence(found) if line.startswith("first: "))
    assert first.endswith(f"{section.grid.rows[0][3]} goodput per device")


@pytest.mark.parametrize(
    ("setting", "value", "sized"),
    [
        ("max_lag", 1, "bound the lag"),  # "bound the lag (at most 1) (max_lag=1)" says it twice
        ("sync_every", 4, "bound the lag (at most 1)"),
        ("", None, "bound the lag (at most 1)"),
    ],
)
def test_a_size_that_the_setting_states_is_not_said_twice(
    tmp_path: Path, setting: str, value: int | None, sized: str
) -> None:
    [some, *_] = slow_verdicts(tmp_path).verdict.fixes
    fix = replace(some, move="bound the lag", size="at most 1", lever="lag_bound=1",
                  setting=setting, value=value)  # fmt: skip
    assert fix.sized == sized


def test_a_fix_says_how_far_its_lever_was_moved(tmp_path: Path) -> None:
    driver = samples(job(rollout=2, reward=6, train=2), [2.0, 2.0, 2.0, 2.0])
    begins = [10 * n + 2 + 1.5 * i for n in range(STEPS) for i in range(4)]
    rows(
        driver,
        "rewards",
        start_s=begins,
        end_s=[begin + 1.5 for begin in begins],
        trajectory=[1000 * n + i + 1 for n in range(STEPS) for i in range(4)],
        value=[float(i % 2) for _ in range(STEPS) for i in range(4)],
        outcome=[0] * len(begins),
    )
    found = summary_of(tmp_path, uses(driver, 4), predict=True)
    sized = [fix.sized for fix in found.verdict.fixes]
    assert "cache verdicts (half of them)" in sized
    # What is there or is not has no size.
    assert "do not wait for the slowest verdicts" in sized
    assert sized[0] == "more reward workers (x4)"
    assert [line for line in evidence(found) if line.startswith(f"first: {sized[0]}")]
    out = io.StringIO()
    terminal.render(found, Console(file=out, width=120))
    page = str(fixes_part(found.verdict).body)
    for shown in (out.getvalue(), markdown.render(found), page):
        assert "1. more reward workers (x4)" in shown


def test_what_a_prediction_is_for_is_set_whatever_the_run_has() -> None:
    """The lag that the run would have by default is not the lag that was predicted."""
    (move,) = [one for one in moves() if one.move == "do not wait for the slowest tools"]
    known = settings_for("rltrace.trainer", "", move)
    run = {"placement": "disaggregated", "max_lag": 4}
    assert [(one.option, one.needs) for one in not_yet(known, (), run)] == [
        ("placement", {"max_lag": 1})
    ]
    assert [one.needs for one in not_yet(known, (), {**run, "max_lag": 1})] == [{}]


def test_a_run_that_states_its_settings_is_offered_no_others() -> None:
    def offered(stated: dict[str, object]) -> set[str]:
        made = [one for move in moves() for one in settings_for("trl", "1.16.0", move)]
        return {one.option for one in made if one.is_of(stated)}

    of_async = {"--max_staleness", "--token_budget"}
    correction = {"--vllm_importance_sampling_correction"}
    rloo = {"--num_generations": 4, "--use_vllm": False, "--per_device_train_batch_size": 4}
    grpo = {**rloo, "--vllm_importance_sampling_correction": True}
    assert offered({}) >= of_async | correction
    assert offered(rloo) & (of_async | correction) == set()
    assert offered(rloo) >= {"--num_generations", "--use_vllm", "--deepspeed"}
    assert not offered(grpo) & correction  # it does nothing without vLLM
    assert offered({**grpo, "--use_vllm": True}) >= correction
    assert offered({**rloo, "--max_staleness": 4}) >= of_async


def test_what_is_stated_nowhere_is_offered_all_the_same() -> None:
    own = Setting("weight movement", "", WRAP_SYNC, True, "", "", ())
    assert own.is_of({"--num_generations": 4})


def test_an_option_of_a_pass_that_serves_one_update_says_how_many_it_may_serve() -> None:
    (move,) = [one for one in moves() if one.move == "drop the log-prob pass"]
    known = settings_for("trl", "1.16.0", move)
    run = {"--use_vllm": True, "--vllm_importance_sampling_correction": True}
    assert [one.needs for one in not_yet(known, (), {**run, "--num_iterations": 2})] == [
        {"--num_iterations": 1}
    ]
    assert [one.needs for one in not_yet(known, (), {**run, "--num_iterations": 1})] == [{}]
