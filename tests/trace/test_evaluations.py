"""What is generated within an evaluation is the evaluation's, and in no figure of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.testing import Process, process, rows, run_of, turns
from rltrace.testing.inside.analysis import group_signal, summarize
from rltrace.testing.inside.trace import Fate
from rltrace.testing.inside.trace import OpenedRun as Run


def engine(*spans: Any, begins_s: list[float], value: list[float]) -> Process:
    """An engine with samples of 2 s and 7 tokens, two to a group, judged within them."""
    made, ids = process("rollout", *spans), list(range(len(begins_s)))
    rows(made, "trajectories", start_s=begins_s, end_s=[s + 2 for s in begins_s], trajectory=ids,
         group=[i // 2 for i in ids], response_tokens=7)  # fmt: skip
    return rows(made, "rewards", start_s=[s + 1 for s in begins_s],
                end_s=[s + 2 for s in begins_s], trajectory=ids, value=value)  # fmt: skip


EVAL = ("eval", 20.0, 26.0)
BEGINS_S = [1.0, 1.0, 11.0, 11.0, 21.0, 22.0]
VALUE = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]


def evaluated(path: Path, met: list[int], *more: Any) -> Run:
    """Two steps and an evaluation; samples 0 to 3 are begun in the steps, 4 and 5 in that."""
    driver = process("driver", *turns(5.0, 5.0), EVAL, *more)
    rows(driver, "uses", time_s=[6.0 + 10 * (i // 2) for i in met], trajectory=met, tokens=7,
         fate=Fate.TRAINED)  # fmt: skip
    spans = [("rollout", s, s + 2) for s in sorted(set(BEGINS_S))]
    return run_of(path, driver, engine(*spans, begins_s=BEGINS_S, value=VALUE))


@pytest.mark.parametrize("friendly", ["", "raw_"])
def test_what_engines_do_in_an_evaluation_is_its_own(tmp_path: Path, friendly: str) -> None:
    run = evaluated(tmp_path, [0, 1, 2, 3])
    (samples,) = run.ask(f"select count(*), max(trajectory) from {friendly}trajectories")
    (verdicts,) = run.ask(f"select count(*), max(trajectory) from {friendly}rewards")
    assert samples == verdicts == (4, 3)
    summary = summarize(run)
    signal = group_signal(run)
    assert signal is not None
    assert (signal.groups, signal.with_signal) == (2, 2)
    assert summary.goodput is not None
    assert (summary.goodput.generated_samples, summary.goodput.trained_share) == (4, 1.0)
    stages = dict(run.ask("select stage, count(*) from spans where role = 'rollout' group by 1"))
    assert stages == {"rollout": 2, "eval": 2}


def test_generation_that_goes_on_beside_an_evaluation_is_training(tmp_path: Path) -> None:
    run = evaluated(tmp_path, [0, 1, 2, 3, 5])
    assert run.ask("select count(*) from raw_trajectories") == [(6,)]
    stages = dict(run.ask("select stage, count(*) from spans where role = 'rollout' group by 1"))
    assert stages == {"rollout": 4}


def test_without_ids_that_met_the_learner_only_the_process_itself_evaluates(tmp_path: Path) -> None:
    run = evaluated(tmp_path, [], ("rollout", 21.0, 22.0), ("eval", 23.0, 24.0))
    assert run.ask("select count(*) from raw_trajectories") == [(6,)]
    by_role = "select role, stage, count(*) from spans where start_ns > (select min(start_ns) "
    by_role += "+ 20000000000 - 1 from spans) group by all order by all"
    assert run.ask(by_role) == [("driver", "eval", 3), ("rollout", "rollout", 2)]


def test_a_stage_in_which_nothing_is_generated_keeps_its_rewards(tmp_path: Path) -> None:
    """An own loop may call it `eval` when it judges."""
    driver = process("driver", *turns(5.0), ("eval", 6.0, 8.0), ("reward", 6.5, 7.0))
    rows(driver, "trajectories", start_s=[1.0, 1.0], end_s=4.0, trajectory=[0, 1], group=1)
    rows(driver, "rewards", start_s=6.5, end_s=7.0, trajectory=[0, 1], value=[0.0, 1.0])
    rows(driver, "uses", time_s=9.0, trajectory=[0, 1], fate=Fate.TRAINED)
    run = run_of(tmp_path, driver)
    assert run.ask("select count(*) from raw_rewards") == [(2,)]
    assert run.ask("select count(*) from spans where stage = 'reward'") == [(1,)]


def test_a_rank_evaluates_while_another_trains(tmp_path: Path) -> None:
    ranks = []
    for rank, shift_s in enumerate((0.0, 4.0)):
        made = process("trainer", ("eval", 20.0 + shift_s, 24.0 + shift_s), rank=rank)
        ids = [10 * rank + i for i in range(2)]
        rows(made, "trajectories", start_s=[24.5 - shift_s, 21.0 + shift_s], trajectory=ids,
             end_s=[25.5 - shift_s, 23.0 + shift_s], response_tokens=7)  # fmt: skip
        ranks.append(rows(made, "uses", time_s=29.0, trajectory=ids[:1], fate=Fate.TRAINED))
    run = run_of(tmp_path, *ranks)
    assert run.ask("select trajectory from raw_trajectories order by 1") == [(0,), (10,)]
