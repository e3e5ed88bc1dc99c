"""What the first sentences say of a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from rltrace.report.sections.verdict_section import sentences, suggested
from rltrace.testing.handmade_runs import at, between, process, rows, run_of
from rltrace.testing.inside.analysis import Summary, summarize
from rltrace.testing.inside.report import sections, stages_section, warnings
from rltrace.testing.inside.trace import Fate, Stage


def summary_of(path: Path, *others: tuple[str, float, float, int]) -> Summary:
    """Four steps of 10 s in lane 0 of a controller, which waits `(for what, from, to, lane)` too;
    a worker generates for 9 s of each and a learner trains for 1 s."""
    controller = process("controller", *((("step", n), 10 * n, 10 * n + 10, 0) for n in range(4)))
    for n in range(4):
        for name, since, until, lane in others:
            when = between(10 * n + since, 10 * n + until)
            controller.span(when, name, Stage.WAIT, -1, lane=lane)
    worker = process("rollout", *((Stage.ROLLOUT, 10 * n, 10 * n + 9) for n in range(4)))
    learner = process("learner", *((Stage.TRAIN, 10 * n + 9, 10 * n + 10) for n in range(4)))
    return summarize(run_of(path, controller, worker, learner))


def test_back_pressure_is_evidence_where_the_steps_themselves_wait(tmp_path: Path) -> None:
    found = summary_of(tmp_path / "beside", ("the lag bound", 0, 10, 1))
    assert [(wait.name, wait.in_step) for wait in found.waits] == [("the lag bound", False)]
    found = summary_of(tmp_path / "in", ("the lag bound", 0, 10, 1), ("samples", 0, 9, 0))
    waiting = "Waiting for “samples”: 1 controller, 90 % of the time (4 times)."
    assert waiting in stages_section(found).notes


def test_a_job_that_failed_in_its_first_step_trained_on_nothing(tmp_path: Path) -> None:
    learner = process("learner", (("step", 1), 0, -1), (Stage.LOGPROB, 5, 6))
    rows(learner, "uses", time_s=[5], trajectory=[1], fate=[Fate.TRAINED], tokens=[9])
    found = summarize(run_of(tmp_path, learner, end_real_ns=at(9), exit_code=1))
    assert "No advice: it failed." in next(sentences(found))
    shown = {one.title: one for _, parts in sections(found) for one in parts}
    assert "no training on these samples" in " ".join(shown["Staleness"].notes)
    assert shown["Goodput"].lines[0] == "Unknown: no step was completed."
    assert shown["Goodput"].grid is not None
    assert shown["Goodput"].grid.rows[0][0] == "handed to the learner"


LOOP = """
def generate(): pass
def update(): pass
def one_step():
    generate()
    update()
"""


@pytest.mark.parametrize(
    ("asked", "hooks"),
    [
        ([], ["one_step=step", "generate=rollout", "update=train"]),
        (["__main__:generat=rollout"], ["generate=rollout", "one_step=step", "update=train"]),
        (["__main__:x=reward", "__main__:one_step=step"],
         ["x=reward", "one_step=step", "generate=rollout", "update=train"]),
    ],
)  # fmt: skip
def test_hooks_to_type_keep_those_that_were_typed(
    tmp_path: Path, asked: list[str], hooks: list[str]
) -> None:
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    command = ["python", str(script)]
    run = run_of(tmp_path, process("x"), command=command, settings={"hooks": asked})
    words = shlex.split(suggested(str(run.path)))
    assert [word for word in words if "__main__" in word] == [f"__main__:{one}" for one in hooks]


@pytest.mark.parametrize(
    ("how", "failed"),
    [
        ({"exit_code": 1, "signals": [2]}, False),
        ({"exit_code": 130}, False),
        ({"exit_code": 1}, True),
    ],
)
def test_a_job_that_somebody_ended_did_not_fail(
    tmp_path: Path, how: dict[str, Any], failed: bool
) -> None:
    driver = process("driver", (("step", 0), 0, 10), (Stage.TRAIN, 0, 10), (("step", 1), 10, -1))
    found = summarize(run_of(tmp_path, driver, end_real_ns=at(20), **how))
    warned = "\n".join(warnings(found))
    assert "step 1 was in progress, when the job ended, for 10.0 s" in warned
    assert ("No advice" in next(sentences(found))) is ("failed" in warned) is failed
