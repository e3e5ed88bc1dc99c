"""Logs of jobs that failed, died or were ended, and of those that did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.importers import read_run
from tests.cli.conftest import invoke
from tests.importers.logs import RAISED, TASK, report, verl, written

NO_MEMORY = """Traceback (most recent call last):
  File "/app/verl/trainer/main_ppo.py", line 39, in main
    run_ppo(config)
  File "/opt/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 930, in get_objects
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(OutOfMemoryError): \x1b[36mray::TaskRunner.run()\x1b[39m (pid=4711)
  File "/app/verl/workers/fsdp_workers.py", line 612, in update_actor
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total of 79 GiB
E1130 18:21:07.101000 812 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""
OLDER = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n"


def crashes(found: Any) -> list[str]:
    return [alarm["says"] for alarm in found["health"]["alarms"] if alarm["kind"] == "crash"]


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (RAISED, "ValueError"),
        (NO_MEMORY, "OutOfMemoryError"),
        (OLDER, "RuntimeError: out of memory"),
        (RAISED.replace(TASK, "[rank3]: "), "ValueError"),
        (RAISED[: RAISED.index("    raise")], "cut off"),
    ],
    ids=["ray", "no memory", "older torch", "ranks", "cut"],
)
def test_a_log_that_ends_in_an_exception_is_of_a_job_that_failed(
    tmp_path: Path, end: str, error: str
) -> None:
    (says,) = crashes(report(tmp_path, *map(verl, (1, 2, 3)), end, "wandb: Run history:"))
    assert error in says
    assert "after 3 steps" in says


def test_what_was_raised_before_a_step_did_not_end_the_job(tmp_path: Path) -> None:
    """As of a reward that failed, or a checkpoint that could not be sent."""
    found = report(tmp_path, verl(1), RAISED, OLDER, verl(2), verl(3))
    assert crashes(found) == []
    assert found["steps"]["complete"] == 3


DIED = {
    "Killed": "Killed",
    "./run.sh: line 12: 4711 Killed                  python3 -m verl.trainer.main_ppo": "Killed",
    f"{TASK}terminate called after throwing an instance of 'c10::DistBackendError'": "DistBackend",
    "Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):": "fault",
    "Segmentation fault (core dumped)": "fault",
    "slurmstepd: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T18:21:07 DUE TO TIME LIMIT ***": "LIM",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.": "the node's memory",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low": "node's memory",
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing": "ActorDiedError",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB": "the devices' memory",
    RAISED + "Fatal Python error: Aborted": "ValueError",
    "Fatal Python error: Aborted\n" + RAISED: "Aborted",
    "Exception ignored in: <_io.TextIOWrapper name='<stdout>'>\nBrokenPipeError\n"
    + RAISED: "Value",
}
"""What a console ends in -> what its job failed of."""


@pytest.mark.parametrize(("end", "why"), DIED.items())
def test_a_job_that_died_without_an_exception_failed_unless_a_step_came_after(
    tmp_path: Path, end: str, why: str
) -> None:
    found = read_run(written(tmp_path, *map(verl, (1, 2, 3)), end)).log
    assert why in found.end
    assert not found.ended.from_outside
    assert not read_run(written(tmp_path, verl(1), end, verl(2))).log.end


IGNORED = f"""{TASK}Exception ignored in: <function Client.__del__ at 0x7f1c>
{RAISED}
{TASK}During handling of the above exception, another exception occurred:

{RAISED}"""


@pytest.mark.parametrize(
    "end",
    [
        IGNORED,
        IGNORED[: IGNORED.rindex("    raise")],
        "Exception ignored in atexit callback: <function _exit_function>\n" + RAISED,
        "Error in atexit._run_exitfuncs:\n" + RAISED.replace(TASK, ""),
        "--- Logging error ---\n" + RAISED,
        "Exception ignored in: <_io.TextIOWrapper name='<stdout>'>\nBrokenPipeError: [Errno 32]",
    ],
)
def test_an_exception_that_python_ignores_fails_no_job(tmp_path: Path, end: str) -> None:
    assert not read_run(written(tmp_path, verl(1), verl(2), end)).log.end
    after = read_run(written(tmp_path, verl(1), verl(2), end, "wandb: done", RAISED)).log.end
    assert "ValueError" in after


CTRL_C = RAISED.replace("ValueError: no batch", "KeyboardInterrupt")


@pytest.mark.parametrize(
    "end",
    [
        CTRL_C,
        CTRL_C + RAISED,
        RAISED + CTRL_C,
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T18:21:07 ***",
        RAISED.replace("ValueError: no batch", "torch.x.SignalException: Process 7 got signal: 15"),
    ],
)
def test_what_ended_from_outside_is_no_failure(tmp_path: Path, end: str) -> None:
    found = report(tmp_path, verl(1), verl(2), verl(3), end)
    assert len(crashes(found)) == 1
    assert found["health"]["ok"]


def test_a_job_that_failed_before_any_figure_is_said_to_have(tmp_path: Path) -> None:
    bar = f"{TASK}Training Progress:   1%|          | 2/435 [03:04<11:09:28, 92.55s/it]"
    result = invoke("report", written(tmp_path, "loading weights", bar, NO_MEMORY))
    assert (result.exit_code, len(result.output.splitlines())) == (4, 1)
    assert "OutOfMemoryError" in result.output
    assert "after 2 steps" in result.output
    validated = f"{TASK}step:0 - val-core/openai/gsm8k/acc/mean@1:0.31"
    result = invoke("report", written(tmp_path, validated, RAISED))
    assert (result.exit_code, "ValueError" in result.output) == (4, True)
