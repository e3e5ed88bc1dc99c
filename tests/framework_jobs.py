"""Jobs of real frameworks, run as a user starts them, and what they leave: what the suites of all
frameworks share."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

import rltrace
from rltrace.testing.inside.analysis import Stuck, break_down, find_steps, read_activity, stuck_of
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.hooks.conftest import WRAP, clean_environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "tests/plugin"
LIMIT_S = 1500  # of one job, which takes half a minute to two on idle cores
LAST_WORDS_S = 60  # of one that was asked to end

RAY = {
    "RAY_memory_monitor_refresh_ms": "0",  # it kills for the memory of other programs
    "RAY_raylet_start_wait_time_s": "180",
}
"""The environment of a job that starts a Ray cluster of its own."""

FULL_FORM = pytest.mark.skipif(
    bool(os.environ.get("QUICK")), reason="QUICK=1 asks for a few kinds of jobs, this is another"
)
"""Of tests that run jobs of their own: the quick form has no time for them, the full one has."""

Meanwhile = Callable[["subprocess.Popen[bytes]"], None]
"""What is done while a job runs; it may end the job."""

JobT = TypeVar("JobT")


@dataclass(frozen=True)
class Ended(Generic[JobT]):
    """A job that has ended with `code`: what it printed, what its own code stamped and, if traced,
    the run."""

    job: JobT
    folder: Path
    code: int = 0

    @cached_property
    def run(self) -> Run:
        """The trace."""
        return rltrace.open_run(self.folder / "run")

    @cached_property
    def log(self) -> str:
        """All that the job printed."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def problems(self) -> list[dict[str, Any]]:
        """What could not be hooked, read or recorded."""
        return [problem for problem in self.run.problems if problem["what"] != "no-gpu"]

    @property
    def untraced(self) -> float:
        """The share of the steps after the first in which nobody says what is done."""
        activity = read_activity(self.run)
        found = break_down(activity, find_steps(self.run, (activity.first_ns, activity.last_ns)))
        return sum(found.untraced_s[1:]) / sum(found.steps_s[1:])

    def stamps(self, what: str) -> list[dict[str, Any]]:
        """What the job's own code wrote down (tests/plugin/job_stamps.py), in order of its
        start."""
        files = (self.folder / "stamps").glob(f"{what}-*.jsonl")
        found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sorted(found, key=lambda line: line["start_ns"])

    def rows(self, query: str) -> list[Any]:
        """The rows of a query on the trace; bare values where it has one column."""
        found = self.run.sql(query).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]

    def keyed(self, query: str) -> dict[Any, Any]:
        """The rows of a query by their first column: what is left of each, one value bare."""
        rows = self.run.sql(query).fetchall()
        return {key: rest[0] if len(rest) == 1 else tuple(rest) for key, *rest in rows}

    @classmethod
    def of(
        cls,
        job: JobT,
        folder: Path,
        command: Sequence[str],
        traced: bool = True,
        code: int | None = 0,
        meanwhile: Meanwhile = lambda process: None,
        options: Sequence[str] = (),
        **environment: str,
    ) -> Any:
        """Runs a job's command in a folder, by default traced into `run` there with `options` of
        `rltrace wrap`, until it ends with `code`; `None` is any. Errors: `AssertionError`, with the
        end of what it printed, where it has ended with another one."""
        (folder / "stamps").mkdir(parents=True, exist_ok=True)
        wrap = [*WRAP, "--out", str(folder / "run"), *options, "--"] if traced else []
        with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as ray_dir:
            own = {"PYTHON": sys.executable, "JOB_STAMPS": str(folder / "stamps")}
            own["RAY_DIR"] = ray_dir  # short: sockets have their paths there
            around = clean_environment(**{**own, **RAY, **environment})
            ended = cls(job, folder, _run([*wrap, *command], folder, around, meanwhile))
        assert code is None or ended.code == code, ended.log[-8000:]
        return ended


def hung(train: Any, job: Any, assets: Path, folder: Path) -> tuple[Any, dict[str, Any], Stuck]:
    """Runs a job that hangs (tests/plugin/hangs.py) until an agent has said why, and lets it go:
    what became of it, the stamp of what hung, and what was said."""
    told, found = Ended(job, folder), list[Stuck]()

    def until_found(process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not found and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
            nodes = [json.loads(path.read_text()) for path in folder.glob("run/nodes/*.json")]
            said = [one for one in (stuck_of(node.get("stuck")) for node in nodes) if one]
            hung_ns = [stamp["end_ns"] for stamp in told.stamps("hangs")]
            found.extend(one for one in said if hung_ns and one.seen_ns > hung_ns[0])
        if found:
            (folder / "stamps/release").open("wb").close()

    ended = train(job, assets, folder, meanwhile=until_found, options=("--stuck-after", "5s"))
    return ended, told.stamps("hangs")[0], found[0]


CLOCKS_NS = 1_000_000  # between a job's clock and the trace's, which may drift in a run


def lie_within(stamps: list[dict[str, Any]], intervals: list[tuple[int, int | None]]) -> bool:
    """Whether what the job says of itself lies within the intervals that watch it; one without an
    end still goes on."""
    return all(
        any(
            start_ns <= stamp["start_ns"] + CLOCKS_NS
            and (end_ns is None or stamp["end_ns"] <= end_ns + CLOCKS_NS)
            for start_ns, end_ns in intervals
        )
        for stamp in stamps
    )


def _run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], meanwhile: Meanwhile
) -> int:
    """Runs a command to its end in a folder, with what it prints in `log` there; its exit code.
    Nothing of it is left where it takes too long, or `meanwhile` raises."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            meanwhile(process)
            return process.wait(LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(LAST_WORDS_S)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            raise


def free_port() -> int:
    """A port that nobody listens at, and that no connection is given by chance until somebody does:
    Linux gives those from 32768 on."""
    while True:
        with socket.socket() as listening, suppress(OSError):
            listening.bind(("", random.randrange(20_000, 32_768)))
            return int(listening.getsockname()[1])


def assets_of(framework: str, folder: Path) -> Path:
    """Model, tokenizer and prompts for the jobs of a framework, made in a folder; no network."""
    make = [sys.executable, str(PLUGIN / "make_assets.py"), framework, str(folder)]
    subprocess.run(make, check=True, env=clean_environment())
    return folder


def printed(command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """What a launch of `examples/` says, started by this Python."""
    around = clean_environment(PYTHON=sys.executable, **environment)
    return subprocess.run(command, env=around, capture_output=True, text=True, check=False)


def pinned_by_extra(extra: str) -> dict[str, str]:
    """What an extra of rltrace asks for -> the version."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return dict(one.split("==") for one in listed["optional-dependencies"][extra])


def fixtures_of(jobs: Mapping[str, Any], quick: Sequence[str], make: Any, train: Any) -> Any:
    """The fixtures of a suite: the `assets` of its jobs; the `finished` job of a name, traced
    unless asked otherwise, each run once; and each of them that is asked for, traced."""

    @pytest.fixture(scope="session")
    def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return make(tmp_path_factory.mktemp("assets") / "sums")

    @pytest.fixture(scope="session")
    def finished(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
        @functools.cache
        def job(name: str, traced: bool = True) -> Any:
            if os.environ.get("QUICK") and name not in quick:
                pytest.skip("QUICK=1 asks for fewer kinds of jobs")
            return train(jobs[name], assets, tmp_path_factory.mktemp(name), traced)

        return job

    @pytest.fixture(params=jobs)
    def job(request: pytest.FixtureRequest, finished: Callable[..., Any]) -> Any:
        return finished(request.param)

    return assets, finished, job
