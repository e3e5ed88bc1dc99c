"""What a trace does not tell is said, and no wall is named on it."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rltrace.testing.inside.analysis import (
    ENV_REWARD,
    FRESHNESS,
    LEARNER,
    NAMES,
    OBSERVABILITY,
    ROLLOUT,
    SPARSE_REWARD,
    TAIL,
    WEIGHTS,
    Summary,
    ranked,
    summarize,
    workload_of,
)
from rltrace.testing.inside.report import plain, terminal
from rltrace.testing.inside.trace import RltraceError, Stage
from rltrace.testing.made import at, process, rows, run_of
from rltrace.testing.played import Process
from tests.analysis.walls.walled import STEPS, job, samples, summary_of, uses, verdicts, walls_of


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
    nobody_can_tell(summary_of(tmp_path, predict=True), "no stage was seen", "doctor")


def test_a_run_without_steps(tmp_path: Path) -> None:
    driver = process("driver", (Stage.ROLLOUT, 0, 6), (Stage.TRAIN, 6, 8))
    found = summary_of(tmp_path, driver, predict=True)
    nobody_can_tell(found, "no step was recorded", "--hook module:function=step", "rltrace.step(n)")
    assert "longer run" not in " ".join(found.verdict.would_tell)


def test_a_run_whose_every_step_failed(tmp_path: Path) -> None:
    """It has said what a step is."""
    found = summary_of(tmp_path, process("driver", *FAILS, (Stage.ROLLOUT, 0, 5)), predict=True)
    nobody_can_tell(found, "no complete step was recorded", "why it does not")
    assert "--hook" not in " ".join(found.verdict.would_tell)


def test_one_step(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, 10), (Stage.ROLLOUT, 0, 9), (Stage.TRAIN, 9, 10))
    nobody_can_tell(summary_of(tmp_path, driver, predict=True), "1 steady step", "more steps")


def test_a_job_that_died_in_its_first_step(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 0, -1), (Stage.ROLLOUT, 0, 5))
    found = summary_of(tmp_path, driver, exit_code=1, end_real_ns=at(6), predict=True)
    nobody_can_tell(found, "no complete step")
    assert "in step 0, before its first step was complete" in found.verdict.alarms[0]


def test_generation_that_was_not_seen_makes_no_wall_of_the_rest(tmp_path: Path) -> None:
    """Training is all that has spans, and takes 3 of 10 seconds."""
    spans: list[tuple[Any, ...]] = []
    for n in range(STEPS):
        spans += [(("step", n), 10 * n, 10 * n + 10), (Stage.TRAIN, 10 * n + 7, 10 * n + 10)]
    found = summary_of(tmp_path, process("driver", *spans), predict=True)
    nobody_can_tell(found, "70 % of the step is in no stage", ROLLOUT)
    assert walls_of(found)[ROLLOUT].confidence == "cannot tell"
    assert "doctor" in " ".join(walls_of(found)[ROLLOUT].missing)


def test_a_learner_that_waits_for_who_was_not_seen(tmp_path: Path) -> None:
    spans: list[tuple[Any, ...]] = []
    for n in range(STEPS):
        spans += [(("step", n), 10 * n, 10 * n + 10), (Stage.WAIT, 10 * n, 10 * n + 7)]
        spans += [(Stage.TRAIN, 10 * n + 7, 10 * n + 10)]
    found = summary_of(tmp_path, process("driver", *spans), predict=True)
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
    found = summary_of(tmp_path, job(rollout=8, train=2), wrong, predict=True)
    assert found.verdict.first is not None
    assert found.verdict.first.name == ROLLOUT


LONG = [2.0, 3.0, 4.0, 8.0]


def engine(**columns: Any) -> Process:
    """Four samples a step, each with a verdict."""
    return verdicts(samples(process("rollout"), LONG, **columns), 4, lambda n, i: i % 2)


def moved(by_s: float) -> Process:
    """Generation that another node's clock puts elsewhere."""
    spans = [(Stage.ROLLOUT, 10 * n + by_s, 10 * n + 8 + by_s) for n in range(STEPS)]
    return process("rollout", *spans)


def backwards(*stages: Any) -> Process:
    """Spans that end before they begin."""
    return process(
        "rollout", *((stage, 10 * n + 8, 10 * n) for n in range(STEPS) for stage in stages)
    )


STEP_0 = (("step", 0), 0, -1)
FAILS = [(("step", n), 10 * n, -1) for n in range(STEPS)]


@pytest.mark.parametrize(
    ("processes", "meta", "first", "unknown"),
    [
        pytest.param(
            [job(rollout=8, train=2),
             uses(engine(first_version=-1, last_version=-1), 4, version=-1)],
            {}, ROLLOUT, {FRESHNESS: "the policy version of each sample"}, id="no versions",
        ),
        pytest.param(
            [job(rollout=8, train=2)],
            {}, ROLLOUT,
            {TAIL: "the trajectories' begin and end", SPARSE_REWARD: "the group of each sample",
             FRESHNESS: "the policy version", OBSERVABILITY: "a hook where an episode ends"},
            id="no trajectories",
        ),
        pytest.param(
            [job(rollout=8), engine()],
            {}, ROLLOUT,
            {LEARNER: "logprob, value, train", WEIGHTS: "spans of stage sync",
             ENV_REWARD: "spans of stage env"},
            id="no training seen",
        ),
        pytest.param(
            [job(train=2)], {}, None, {ROLLOUT: "spans of stage rollout"}, id="no generation seen"
        ),
        pytest.param([job(train=2), moved(-1000)], {}, None, {ROLLOUT: "clocks out of order"},
                     id="generation before the job"),
        pytest.param([job(train=2), backwards(Stage.ROLLOUT)], {}, None,
                     {ROLLOUT: "clocks out of order"}, id="generation backwards"),
        pytest.param([backwards(("step", 0), Stage.ROLLOUT)], {}, None,
                     {ROLLOUT: "spans of stage step"}, id="steps backwards"),
        pytest.param(
            [process("driver", (("step", 0), 0, 10), (Stage.ROLLOUT, 0, 8))],
            {}, None, {FRESHNESS: "the policy version"}, id="one step",
        ),
        pytest.param(
            [process("driver", STEP_0, (Stage.ROLLOUT, 0, 5))],
            {"exit_code": 3, "end_real_ns": at(6)}, None, {ROLLOUT: "spans of stage step"},
            id="died in its first step",
        ),
        pytest.param(
            [process("driver", STEP_0, (Stage.ROLLOUT, 1, -1))],
            {"exit_code": None, "end_real_ns": at(600)}, None, {ROLLOUT: "spans of stage step"},
            id="stuck in its first step",
        ),
        pytest.param([process("driver", *FAILS, (Stage.ROLLOUT, 0, 5))], {}, None,
                     {ROLLOUT: "spans of stage step"}, id="every step failed"),
        pytest.param([], {}, None, dict.fromkeys(NAMES, ""), id="nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_said_and_nothing_else_is_claimed(
    tmp_path: Path,
    processes: list[Process],
    meta: dict[str, Any],
    first: str | None,
    unknown: dict[str, str],
) -> None:
    """And neither the report nor a what-if of it ends in anything but an answer."""
    run = run_of(tmp_path, *processes, **meta)
    found = summarize(run)
    assert (found.verdict.first and found.verdict.first.name) == first
    for name, word in unknown.items():
        wall = walls_of(found)[name]
        assert (wall.confidence, wall.cost.known) == ("cannot tell", False)
        assert word in " ".join(wall.missing)
    if first is None:
        assert found.verdict.confidence == "cannot tell"
        assert found.verdict.because
        assert found.verdict.would_tell
        assert found.verdict.fixes == ()
    assert "Infinity" not in json.dumps(plain(found))
    terminal.render(found, Console(file=io.StringIO(), width=100))
    with contextlib.suppress(RltraceError):
        ranked(workload_of(run))


def test_a_log_of_durations_does_not_tell_what_ran_at_once(tmp_path: Path) -> None:
    log = {"trainer": "verl", "kind": "metrics"}
    found = summary_of(tmp_path, job(rollout=8, train=2), imported=log, predict=True).verdict
    assert found.first is not None
    assert (found.first.name, found.confidence) == (ROLLOUT, "weak")
    assert "what ran at once" in " ".join(found.would_tell)


def test_hooks_are_asked_after_where_a_run_without_stages_had_any(tmp_path: Path) -> None:
    log = {"trainer": "", "kind": "console log"}
    traced = summary_of(tmp_path / "a", predict=True).verdict
    imported = summary_of(tmp_path / "b", imported=log, predict=True).verdict
    assert traced.because == imported.because == "no stage was seen"
    assert "hooks" in " ".join(traced.would_tell)
    assert "hooks" not in " ".join(imported.would_tell)


def test_a_run_that_is_not_well_gets_no_advice(tmp_path: Path) -> None:
    long = samples(process("rollout"), [8.0] * 4)
    whole = summary_of(tmp_path / "a", job(rollout=8, train=2), long, predict=True)
    assert whole.verdict.fixes
    long = samples(process("rollout"), [8.0] * 4)
    failed = summary_of(
        tmp_path / "b", job(rollout=8, train=2), long, exit_code=1, end_real_ns=at(60), predict=True
    )
    assert failed.verdict.alarms
    assert failed.verdict.fixes == ()
