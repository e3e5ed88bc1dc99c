"""Jobs that run real parts of a framework under `rltrace wrap`, and what they leave."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.framework_jobs import RAY, Ended, free_port, run_job, written
from tests.hooks.conftest import WRAP, clean_environment

JOBS = Path(__file__).with_name("job")


class Finished(Ended[str]):
    """A finished job, by the name of its script, and what it wrote down itself."""

    @property
    def problems(self) -> list[dict[str, Any]]:
        """What could not be hooked, read or recorded."""
        return [problem for problem in self.run.problems if problem["what"] != "no-gpu"]

    def keyed(self, query: str) -> dict[Any, Any]:
        """The rows of a query by their first column: what is left of each, one value bare."""
        rows = self.run.sql(query).fetchall()
        return {key: rest[0] if len(rest) == 1 else tuple(rest) for key, *rest in rows}

    def noted(self, what: str) -> list[dict[str, Any]]:
        """The job's own ledger, in order of time."""
        return written(self.folder / "ledger", what, "time_ns")


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
        MASTER_PORT=str(free_port()),
        RAY_USAGE_STATS_ENABLED="0",
        **RAY,
    )
    finished = Finished(script, folder, run_job(command, folder, environment))
    finished.checked(0)
    assert finished.problems == [], "every hook has found its target and could read"
    return finished
