"""What a trace does not tell is said, and no wall is named on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rltrace.analysis.summary import Summary
from rltrace.analysis.walls.wall import NAMES, ROLLOUT
from rltrace.trace.vocabulary import Stage
from tests.analysis.handmade import at, process, rows
from tests.analysis.walls.walled import STEPS, job, samples, summary_of, walls_of


def nobody_can_tell(found: Summary, *words: str) -> None:
    verdict = found.verdict
    assert verdict.first is None
    assert verdict.confidence == "cannot tell"
    assert not verdict.balanced
    assert verdict.fixes == ()
    assert {wall.name for wall in verdict.walls} == set(NAMES)
    for word in words:
        assert word in " ".join((verdict.because, *verdict.would_tell))


def test_an_empty_run(tmp_path: Path) -> None:
    nobody_can_tell(summary_of(tmp_path), "no stage was seen", "doctor")


def test_a_run_without_steps(tmp_path: Path) -> None:
    driver = process("driver", (Stage.ROLLOUT, 0, 6), (Stage.TRAIN, 6, 8))
    nobody_can_tell(summary_of(tmp_path, driver), "no complete step", "stage step")


def test_one_step(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, 10), (Stage.ROLLOUT, 0, 9), (Stage.TRAIN, 9, 10))
    nobody_can_tell(summary_of(tmp_path, driver), "1 steady step", "more steps")


def test_a_job_that_died_in_its_first_step(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, -1), (Stage.ROLLOUT, 0, 5))
    found = summary_of(tmp_path, driver, exit_code=1, end_real_ns=at(6))
    nobody_can_tell(found, "no complete step")
    assert "in step 0, before its first step was complete" in found.verdict.alarms[0]


def test_generation_that_was_not_seen_makes_no_wall_of_the_rest(tmp_path: Path) -> None:
    """Training is all that has spans, and takes 3 of 10 seconds."""
    spans: list[tuple[Any, ...]] = []
    for n in range(STEPS):
        spans += [(("step", n), 10 * n, 10 * n + 10), (Stage.TRAIN, 10 * n + 7, 10 * n + 10)]
    found = summary_of(tmp_path, process("driver", *spans))
    nobody_can_tell(found, "70 % of the step is in no stage", ROLLOUT)
    assert walls_of(found)[ROLLOUT].confidence == "cannot tell"
    assert "doctor" in " ".join(walls_of(found)[ROLLOUT].missing)


def test_a_learner_that_waits_for_who_was_not_seen(tmp_path: Path) -> None:
    spans: list[tuple[Any, ...]] = []
    for n in range(STEPS):
        spans += [(("step", n), 10 * n, 10 * n + 10), (Stage.WAIT, 10 * n, 10 * n + 7)]
        spans += [(Stage.TRAIN, 10 * n + 7, 10 * n + 10)]
    found = summary_of(tmp_path, process("driver", *spans))
    nobody_can_tell(found, "70 % of the step is wait")
    assert "a poll" in " ".join(found.verdict.would_tell)


def test_samples_that_end_before_they_begin(tmp_path: Path) -> None:
    """Clocks of two nodes out of order: such rows are no evidence, and the rest stands."""
    wrong = rows(
        process("rollout"),
        "trajectories",
        start_s=[10 * n + 5 for n in range(STEPS)],
        end_s=[10 * n + 4 for n in range(STEPS)],
        trajectory=list(range(1, STEPS + 1)),
    )
    found = summary_of(tmp_path, job(rollout=8, train=2), wrong)
    assert found.verdict.first is not None
    assert found.verdict.first.name == ROLLOUT


def test_a_log_of_durations_does_not_tell_what_ran_at_once(tmp_path: Path) -> None:
    log = {"trainer": "verl", "kind": "metrics"}
    found = summary_of(tmp_path, job(rollout=8, train=2), imported=log).verdict
    assert found.first is not None
    assert (found.first.name, found.confidence) == (ROLLOUT, "weak")
    assert "what ran at once" in " ".join(found.would_tell)


def test_a_run_that_is_not_well_gets_no_advice(tmp_path: Path) -> None:
    long = samples(process("rollout"), [8.0] * 4)
    whole = summary_of(tmp_path / "a", job(rollout=8, train=2), long)
    assert whole.verdict.fixes
    long = samples(process("rollout"), [8.0] * 4)
    failed = summary_of(
        tmp_path / "b", job(rollout=8, train=2), long, exit_code=1, end_real_ns=at(60)
    )
    assert failed.verdict.alarms
    assert failed.verdict.fixes == ()
