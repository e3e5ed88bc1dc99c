"""pytest plugin: traces the jobs that a test runs, and gates them.

    @pytest.mark.goodput(baseline="baseline.json", max_regression={"goodput": "3%"})
    def test_training_is_as_fast_as_ever(rltrace_run):
        run = rltrace_run(sys.executable, "train.py", "--steps", "40")
        assert run.sql("SELECT max(lag) FROM lags").fetchall() <= [(4,)]

pytest loads this module in every session of an environment that has rltrace: what it needs is
imported where a test asks for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rltrace.report.notebook import Run

MARK = "goodput"
_GRACE_SECONDS = 30  # for a job that is told to end
_RUNS: pytest.StashKey[list[Path]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    said = f"{MARK}(min, max, baseline, max_regression, wall, cannot_tell='fail'): "
    said += "what the test runs with `rltrace_run` has to pass the gate; what is not given here is "
    config.addinivalue_line("markers", f"{said}as in rltrace.toml.")


class Tracer:
    def __init__(self, folder: Path, runs: list[Path]) -> None:
        self._folder, self._runs = folder, runs

    def __call__(
        self,
        *command: str | os.PathLike[str],
        hooks: Sequence[str] = (),
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Run:
        """Runs a command under `rltrace wrap` and returns its run; the test fails where the command
        does, or takes longer than `timeout_s`. `hooks` are functions of your own, as
        "module:function=stage"; `env` is the whole environment (default: this one)."""
        import rltrace

        path = self._folder / f"run-{len(self._runs)}"
        options = [word for hook in hooks for word in ("--hook", hook)]
        words = [sys.executable, "-m", "rltrace", "wrap", "--out", str(path), *options, "--"]
        code = _wait(subprocess.Popen([*words, *command], cwd=cwd, env=env), timeout_s)
        shown = " ".join(map(str, command))
        if code is None:
            raise _failed(f"{shown} took longer than {timeout_s:g} s")
        if code != 0:
            raise _failed(f"{shown} ended with exit code {code}")
        self._runs.append(path)
        return rltrace.open_run(path)


def _wait(wrapped: subprocess.Popen[bytes], timeout_s: float | None) -> int | None:
    """The exit code; None of a job that took too long, and was ended."""
    try:
        return wrapped.wait(timeout_s)
    except BaseException as error:
        wrapped.terminate()  # `wrap` passes it on to the job
        with suppress(subprocess.TimeoutExpired):
            wrapped.wait(_GRACE_SECONDS)
        wrapped.kill()
        wrapped.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise


@pytest.fixture
def rltrace_run(request: pytest.FixtureRequest, tmp_path: Path) -> Tracer:
    """`rltrace_run(command, ...)` runs a job with every process of it traced, and returns the run
    (`rltrace.open_run`)."""
    return Tracer(tmp_path, request.node.stash.setdefault(_RUNS, []))


@pytest.hookimpl(trylast=True)  # when the test itself has passed
def pytest_runtest_call(item: pytest.Item) -> None:
    """Holds the jobs that a marked test has run, which are runs of one code, to its gate."""
    if (mark := item.get_closest_marker(MARK)) is None:
        return
    runs = item.stash.get(_RUNS, [])
    if not runs:
        raise _failed(f"nothing to gate: {item.name} ran no job with rltrace_run")
    if mark.args:
        raise _failed(f"@pytest.mark.{MARK} takes limits by name, such as max={{'lag.max': 4}}")
    _hold(runs, item.config.rootpath, **mark.kwargs)


def _hold(runs: Sequence[Path], root: Path, /, cannot_tell: str = "fail", **asked: Any) -> None:
    """`asked` has the names of `[gate]` in rltrace.toml."""
    from rltrace.analysis.gate.metrics import PASS, UNSURE
    from rltrace.report.formats import gate_outputs
    from rltrace.run.gate_settings import from_table, gate, read_settings
    from rltrace.trace.errors import RltraceError

    stated = {name: value for name, value in asked.items() if value is not None}
    if "baseline" in stated:
        stated["baseline"] = os.fspath(stated["baseline"])
    if isinstance(least := stated.get("min"), int | float):
        stated["min"] = {"goodput_per_gpu": least}
    if cannot_tell not in ("fail", "skip"):
        raise _failed(f"cannot_tell is 'fail' or 'skip', and not {cannot_tell!r}")
    try:
        found = gate(runs, from_table(stated, root).over(read_settings(root)))
    except RltraceError as error:
        raise _failed(f"the gate cannot be asked: {error}") from None
    if found.outcome == UNSURE and cannot_tell == "skip":
        pytest.skip(gate_outputs.to_text(found))
    if found.outcome != PASS:
        raise _failed(gate_outputs.to_text(found))


def _failed(message: str) -> BaseException:
    """Without a traceback: where it was raised tells a reader nothing."""
    return pytest.fail.Exception(message, pytrace=False)
