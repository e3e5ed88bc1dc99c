"""Workloads of runs of whose samples nothing is known: of stage seconds, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.analysis import (
    OffTheRun,
    baseline,
    predict,
    ranked,
    replay,
    workload_of,
)
from rltrace.testing.inside.trace import CANNOT_TELL, RltraceError, Run, Stage
from rltrace.testing.made import process, run_of, turns
from tests.analysis.whatif.played import of


def test_without_trajectories_the_stages_are_taken_as_stated(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", *turns(6, 6, 6, 6)))
    load = of(run)
    assert load.steps == 4
    assert replay(load).step_s == pytest.approx(10)
    found = predict(workload_of(run), [("train_speed", "2")])
    assert found.step_s.middle == pytest.approx(8)
    tails = predict(workload_of(run), [("placement", "async")])
    assert any(note.startswith("tail_share") for note in tails.rests_on)


def ahead(path: Path, rollout_s: float, train_s: float, begins_s: float = 0.0) -> Run:
    """A thread generates the next batch beside the learner, so long after its step began; weights
    move for 1 s at the end of a step."""
    step_s = max(begins_s + rollout_s, train_s) + 1
    spans: list[tuple[Any, ...]] = []
    for n in range(6):
        start, end = step_s * n, step_s * (n + 1)
        spans += [(("step", n), start, end, 0), (Stage.TRAIN, start, start + train_s, 0)]
        spans += [(Stage.SYNC, end - 1, end, 0)]
        spans += [(Stage.ROLLOUT, start + begins_s, start + begins_s + rollout_s, 1)]
    return run_of(path, process("driver", *spans))


def test_stages_that_run_beside_each_other_are_replayed_so(tmp_path: Path) -> None:
    source = workload_of(ahead(tmp_path, rollout_s=3, train_s=6))
    found = baseline(source)
    assert found.placement == "one-step-off"
    assert found.replayed_s == pytest.approx(7)
    # 4 s of training, 1 s of weights: the learner's speed counts in full.
    assert predict(source, [("train_speed", "1.5")]).step_s.middle == pytest.approx(5)
    levers = {one.levers[0]: one for one in ranked(source) if one.goodput_gain.middle > 1.02}
    assert list(levers) == ["train_speed=1.5"]
    with pytest.raises(RltraceError, match="goes on beside training already") as error:
        predict(source, [("placement", "async")])
    assert error.value.exit_code == CANNOT_TELL


def test_training_that_is_hidden_gains_nothing(tmp_path: Path) -> None:
    source = workload_of(ahead(tmp_path, rollout_s=6, train_s=3))
    assert predict(source, [("train_speed", "1.5")]).gain.middle == pytest.approx(1)


def test_stages_that_overlap_in_part_predict_nothing(tmp_path: Path) -> None:
    with pytest.raises(RltraceError, match=r"overlap in part \(50 % of the shorter\)") as error:
        workload_of(ahead(tmp_path, rollout_s=4, train_s=6, begins_s=4))
    assert error.value.exit_code == CANNOT_TELL


def test_stages_that_do_not_add_up_to_the_steps_predict_nothing(tmp_path: Path) -> None:
    """It is said to run ahead, and takes turns."""
    driver = process("driver", *turns(5, 5, 5, 5))
    run = run_of(tmp_path, driver, settings={"placement": "one-step-off"})
    with pytest.raises(OffTheRun, match="off by a factor of 2"):
        predict(workload_of(run), [("train_speed", "2")])


@pytest.mark.parametrize(
    "move", [("no_barrier", "1"), ("partial_rollout", "1.5"), ("tail_cap", "p95")]
)
def test_a_tail_that_nobody_saw_is_not_taken_away(tmp_path: Path, move: tuple[str, str]) -> None:
    source = workload_of(run_of(tmp_path, process("driver", *turns(6, 6, 6, 6))))
    with pytest.raises(RltraceError, match="no trajectory was recorded") as error:
        predict(source, [move])
    assert error.value.exit_code == CANNOT_TELL


def one_process(path: Path, rest_s: float = 0.0) -> Run:
    """A plain loop: 6 s of generation, 4 s of training, and so much that is in no span."""
    spans: list[tuple[Any, ...]] = []
    for n in range(6):
        start = (10 + rest_s) * n
        spans += [(("step", n), start, start + 10 + rest_s), (Stage.ROLLOUT, start, start + 6)]
        spans.append((Stage.TRAIN, start + 6, start + 10))
    return run_of(path, process("driver", *spans))


def test_one_process_that_does_everything_is_one_pool(tmp_path: Path) -> None:
    load = of(one_process(tmp_path))
    assert load.devices == {"shared": 1.0}
    found = predict(workload_of(one_process(tmp_path / "b")), [("placement", "one-step-off")])
    assert sum(found.devices.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    "move",
    [
        ("placement", "one-step-off"),
        ("placement", "async"),
        ("placement", "disaggregated"),
        ("train_speed", "1000"),
        ("devices", "x1000"),
    ],
)
def test_time_in_no_span_does_not_go_away(tmp_path: Path, move: tuple[str, str]) -> None:
    run = one_process(tmp_path, rest_s=5.0)
    found = predict(workload_of(run), [move])
    assert found.step_s.high > 5
    same = predict(workload_of(one_process(tmp_path / "without")), [move])
    assert found.step_s.middle >= same.step_s.middle + (0 if "placement" in move else 4.9)
    assert "33 % of the step is in no stage that was seen, and stays" in " ".join(found.rests_on)
    if move[1] in ("one-step-off", "async"):  # held up by it, or not: the range has both
        assert found.step_s.high >= same.step_s.middle + 5


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ([], "no complete step"),
        ([(Stage.ROLLOUT, 0, 5)], "no complete step"),
        ([(("step", 0), 0, 5), (Stage.TRAIN, 0, 5)], "placement is not known|no generation"),
        ([(("step", 0), 0, -1), (Stage.ROLLOUT, 0, -1)], "no complete step"),
    ],
)
def test_what_cannot_be_replayed_is_said(tmp_path: Path, spans: Any, says: str) -> None:
    with pytest.raises(RltraceError, match=says) as error:
        workload_of(run_of(tmp_path, process("driver", *spans)))
    assert error.value.exit_code == CANNOT_TELL


def test_one_step_gives_a_wide_answer(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", *turns(6)))
    found = predict(workload_of(run), [("train_speed", "2")])
    assert found.step_s.middle == pytest.approx(8)
    assert found.step_s.high / found.step_s.low > 1.1
    assert any(note.startswith("1 measured step,") for note in found.rests_on)
