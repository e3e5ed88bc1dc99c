"""Jobs that run under the real `rltrace wrap`, and what their runs hold afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.hooks import Hook, Observer, Patch, Recorder
from tests.patience import PATIENCE_S

WRAP = [sys.executable, "-c", "from rltrace.cli import main; main()", "wrap"]


@dataclass(frozen=True)
class Job:
    """A finished job and its run."""

    code: int
    out: str
    err: str
    run_path: Path

    @property
    def processes(self) -> list[dict[str, Any]]:
        """The process files, the agent's left out, in the order in which they were started."""
        files = [json.loads(p.read_text()) for p in (self.run_path / "process").glob("*.json")]
        job = [file for file in files if file.get("role") != "agent"]
        return sorted(job, key=lambda file: file["start_ns"])

    @property
    def problems(self) -> list[dict[str, Any]]:
        """What could not be hooked or recorded; that there is no GPU is left out."""
        lines = [
            json.loads(line)
            for path in (self.run_path / "problems").glob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return [line for line in lines if line["what"] != "no-gpu"]

    def rows(self, query: str) -> list[Any]:
        """What a query finds; of one column its values."""
        return found_in(self.run_path, query)

    def spans(self, columns: str = "name") -> list[Any]:
        """Columns of the spans in order of their start."""
        return self.rows(f"SELECT {columns} FROM spans ORDER BY start_ns")


RunJob = Callable[..., Job]
Rows = Callable[[str], list[Any]]


def found_in(run_path: Path, query: str) -> list[Any]:
    """What a query finds in a run; of one column its values."""
    rows = rltrace.open_run(run_path).sql(query).fetchall()
    return [row[0] if len(row) == 1 else row for row in rows]


def clean_environment(**more: str) -> dict[str, str]:
    """This environment without what a run or a wrap would have left in it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RLTRACE_", "PYTHON"))}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def untraced(
    *command: str,
    cwd: Path | None = None,
    timeout_s: float = PATIENCE_S,
    given: str | None = None,
    **env: str,
) -> subprocess.CompletedProcess[str]:
    """Runs a command without wrap, `given` on its stdin, with `env` added to a clean
    environment."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=clean_environment(**env),
        input=given,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def wrapped(
    folder: Path, *words: str, timeout_s: float = PATIENCE_S, given: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs `rltrace wrap WORDS` in a folder, otherwise as `untraced`."""
    return untraced(*WRAP, *words, cwd=folder, timeout_s=timeout_s, given=given, **env)


@pytest.fixture
def rows(run_path: Path) -> Rows:
    """What a query finds in the run at `run_path`, at any time."""
    return partial(found_in, run_path)


@pytest.fixture
def job(tmp_path: Path) -> RunJob:
    """Runs a command under `rltrace wrap`; `{script}` in it is a file that holds `program`."""

    def go(
        *command: str,
        program: str = "",
        hooks: tuple[str, ...] = (),
        timeout: float = PATIENCE_S,
        **env: str,
    ) -> Job:
        script = tmp_path / "script.py"
        script.write_text(dedent(program))
        run_path = tmp_path / "run"
        options = [word for hook in hooks for word in ("--hook", hook)]
        words = [word.replace("{script}", str(script)) for word in command]
        wrap = ("--out", str(run_path), *options, "--", *words)
        done = wrapped(tmp_path, *wrap, timeout_s=timeout, **env)
        return Job(done.returncode, done.stdout, done.stderr, run_path)

    return go


@pytest.fixture
def patched(recorder: Recorder) -> Iterator[Any]:
    """Patches attributes in a process that records, and takes the patches back."""
    patches: list[Patch] = []

    def patch(owner: Any, name: str, **hook: Any) -> Patch:
        target = Hook(f"x:{name}", **{"stage": "rollout", **hook})
        patches.append(Patch(owner, name, Observer(target)))
        return patches[-1]

    yield patch
    while patches:
        patches.pop().undo()
