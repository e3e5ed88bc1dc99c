"""Jobs that run real parts of a framework under `rltrace wrap`, and what they leave."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import rltrace
from rltrace.trace.run import Run
from tests.hooks.conftest import WRAP, clean_environment

JOBS = Path(__file__).with_name("job")
LIMIT_S = 1500  # of one job, which takes half a minute on an idle core


@dataclass(frozen=True)
class Finished:
    """A finished job: what it wrote down itself, and the run."""

    folder: Path

    @cached_property
    def run(self) -> Run:
        """The trace."""
        return rltrace.open_run(self.folder / "run")

    @property
    def problems(self) -> list[dict[str, Any]]:
        """What could not be hooked, read or recorded."""
        return [problem for problem in self.run.problems if problem["what"] != "no-gpu"]

    def noted(self, what: str) -> list[dict[str, Any]]:
        """The job's own ledger, in order of time."""
        files = (self.folder / "ledger").glob(f"{what}-*.jsonl")
        found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sorted(found, key=lambda line: line["time_ns"])

    def rows(self, query: str) -> list[Any]:
        """The rows of a query on the trace; bare values where it has one column."""
        found = self.run.sql(query).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]


def run_part(
    script: str, folder: Path, arguments: Sequence[str], wrap: Sequence[str] = ()
) -> Finished:
    """Runs a script of `job/` to its end, traced into `run` in a folder; `wrap` are options of
    `rltrace wrap`."""
    (folder / "ledger").mkdir(parents=True)
    command = [*WRAP, "--out", str(folder / "run"), *wrap, "--"]
    command += [sys.executable, str(JOBS / script), *arguments]
    environment = clean_environment(
        PYTHONPATH=str(JOBS),  # for the processes of a mesh, which know no script
        PARTS_LEDGER=str(folder / "ledger"),
        OMP_NUM_THREADS="1",  # tiny models are fastest on one
        TORCHDYNAMO_DISABLE="1",  # a kernel takes longer to compile than the whole job without
        HF_HUB_OFFLINE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(_free_port()),
        RAY_memory_monitor_refresh_ms="0",  # nobody's memory but this job's is its business
        RAY_USAGE_STATS_ENABLED="0",
    )
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
            code = process.wait(LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
            raise
    assert code == 0, (folder / "log").read_text(errors="replace")[-8000:]
    return Finished(folder)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
