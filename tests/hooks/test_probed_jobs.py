"""Jobs that are probed from outside: all of their processes give the doses of one design."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.hooks import Design
from tests.hooks.conftest import WRAP, clean_environment
from tests.hooks.test_probe_design import dosed_steps
from tests.patience import PATIENCE_S

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


def wrapped(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    script, run = folder / "loop.py", folder / "run"
    script.write_text(LOOP)
    done = subprocess.run(
        [*WRAP, "--out", str(run), *options, "--", sys.executable, str(script)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done, run


def test_all_processes_dose_the_same_steps(tmp_path: Path) -> None:
    done, path = wrapped(tmp_path, "--probe", "rollout", "train", "--probe-seed", "5")
    assert "at most 5 % of the job's time (seed 5)" in done.stderr
    run = rltrace.open_run(path)
    assert run.meta["settings"]["probe"]["stages"] == ["rollout", "train"]
    design = Design(("rollout", "train"), 0.05, 5)
    for stage in design.stages:
        rows = run.sql(
            "select distinct k.step from samples s join steps k "
            "on s.time_ns between k.start_ns and k.end_ns "
            f"where counter = 'probe/{stage}/slept' and value > 0 order by 1"
        ).fetchall()
        assert [step - 100 for (step,) in rows] == dosed_steps(design, stage, 24)
    slept_s = run.sql(
        "select sum(value) from samples where counter like 'probe/%/slept' group by process"
    ).fetchall()
    lasted_s = run.sql("select sum(seconds) from steps").fetchall()[0][0]
    assert len(slept_s) == 2
    assert all(total <= 0.05 * lasted_s for (total,) in slept_s)


def test_a_run_that_is_not_probed_has_nothing_of_it(tmp_path: Path) -> None:
    done, path = wrapped(tmp_path)
    assert done.stdout.strip() == "[]"
    run = rltrace.open_run(path)
    assert "probe" not in run.meta["settings"]
    found = run.sql("select count(*) from samples where counter like 'probe/%'").fetchall()
    assert found == [(0,)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--probe", "wait"), "'wait' is none of the stages that can be delayed"),
        (("--probe", "--probe-budget", "50%"), "at most 12.5 %, not 50"),
        (("--probe", "--probe-budget", "some"), "a share such as 5% or 0.05, not 'some'"),
        (("--probe-seed", "4"), "go with --probe"),
    ],
)
def test_wrong_options_are_one_sentence(options: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [*WRAP, *options, "--", "true"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
