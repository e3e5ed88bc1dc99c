"""Which steps get a dose, how all processes of a job know, and that they give it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.hooks import BLOCK, DEFAULT_STAGES, STAGES, Design, StepFile
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import Stage
from tests.hooks.conftest import wrapped


def dosed_steps(design: Design, stage: str, count: int) -> list[int]:
    return [place for place in range(count) if stage in design.doses(place)]


def test_each_stage_is_dosed_once_in_every_block_after_the_first() -> None:
    design = Design(STAGES, 0.05, seed=3)
    for stage in STAGES:
        places = dosed_steps(design, stage, 100 * BLOCK)
        assert [place // BLOCK for place in places] == list(range(1, 100))
        assert {place % BLOCK for place in places} == set(range(BLOCK))
    given = [dose for place in range(BLOCK, 100 * BLOCK) for dose in design.doses(place).values()]
    assert sum(given) / (99 * BLOCK) / len(STAGES) == pytest.approx(design.budget)


def test_stages_and_seeds_draw_for_themselves() -> None:
    design, other = Design((), 0.05, seed=3), Design((), 0.05, seed=4)
    drawn = {stage: tuple(dosed_steps(design, stage, 400)) for stage in DEFAULT_STAGES}
    assert len(set(drawn.values())) == len(DEFAULT_STAGES)
    assert dosed_steps(other, "train", 400) != dosed_steps(design, "train", 400)
    together = set(drawn["rollout"]) & set(drawn["train"])
    assert 10 < len(together) < 40  # of 99: a quarter
    again = Design.of(design.text())  # in the process that reads it
    assert [again.doses(n) for n in range(400)] == [design.doses(n) for n in range(400)]


def test_no_step_no_dose(tmp_path: Path) -> None:
    steps = StepFile(str(tmp_path))
    assert steps.place() == -1
    steps.publish(40)
    steps.publish(42)
    assert StepFile(str(tmp_path)).place() == 2  # another process


def test_a_stage_of_the_vocabulary_can_be_delayed_or_is_no_work() -> None:
    assert {stage.name.lower() for stage in Stage} - set(STAGES) == {"wait", "other", "step"}


ROLLOUT = """
import sys, time, rltrace
for line in sys.stdin:
    with rltrace.span("rollout"):
        time.sleep(0.02)
    print("done", flush=True)
"""
LOOP = f"""
import subprocess, sys, time, rltrace
child = subprocess.Popen(
    [sys.executable, "-c", {ROLLOUT!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
for number in range(100, 124):
    rltrace.step(number)
    child.stdin.write("go\\n")
    child.stdin.flush()
    child.stdout.readline()
    with rltrace.span("train"):
        time.sleep(0.02)
child.stdin.close()
child.wait()
print([m for m in sys.modules if m.startswith("rltrace.hooks.prob")])
"""


def probed(folder: Path, *options: str) -> tuple[str, Run]:
    """What the job and `wrap` said, and the run."""
    (folder / "loop.py").write_text(LOOP)
    done = wrapped(folder, "--out", "run", *options, "--", sys.executable, "loop.py")
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr, rltrace.open_run(folder / "run")


def test_all_processes_dose_the_same_steps(tmp_path: Path) -> None:
    said, run = probed(tmp_path, "--probe", "rollout,train", "--probe-seed", "5")
    assert "at most 5 % of the job's time (seed 5)" in said
    assert run.meta["settings"]["probe"]["stages"] == ["rollout", "train"]
    design = Design(("rollout", "train"), 0.05, 5)
    for stage in design.stages:
        rows = run.sql(
            "SELECT DISTINCT k.step FROM samples s JOIN steps k "
            "ON s.time_ns BETWEEN k.start_ns AND k.end_ns "
            f"WHERE counter = 'probe/{stage}/slept' AND value > 0 ORDER BY 1"
        ).fetchall()
        assert [step - 100 for (step,) in rows] == dosed_steps(design, stage, 24)
    shares = run.sql(
        "SELECT sum(value) / (SELECT sum(seconds) FROM steps) FROM samples "
        "WHERE counter LIKE 'probe/%/slept' GROUP BY process"
    ).fetchall()
    assert len(shares) == 2
    assert all(share <= 0.1 for (share,) in shares)  # a sleep may last longer than asked


def test_a_run_that_is_not_probed_has_nothing_of_it(tmp_path: Path) -> None:
    said, run = probed(tmp_path)
    assert said.startswith("[]\n")
    assert "probe" not in run.meta["settings"]
    found = run.sql("SELECT count(*) FROM samples WHERE counter LIKE 'probe/%'").fetchall()
    assert found == [(0,)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--probe", "wait"), "'wait'"),
        (("--probe", "--probe-budget", "12.6%"), "12.5 %"),
        (("--probe", "--probe-budget", "0"), "%"),
        (("--probe", "--probe-budget", "some"), "'some'"),
        (("--probe-seed", "4"), "--probe"),
    ],
)
def test_wrong_options_are_one_sentence(
    tmp_path: Path, options: tuple[str, ...], named: str
) -> None:
    done = wrapped(tmp_path, *options, "--", "true")
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
