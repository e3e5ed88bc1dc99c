"""Summaries of all kinds of runs, for every form of the report."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

import rltrace
from benchmarks.make_trace import Workload, make
from rltrace.testing.handmade_runs import at, process, run_of
from rltrace.testing.inside.analysis import Summary
from rltrace.testing.inside.report import terminal
from rltrace.testing.inside.trace import OpenedRun as Run
from rltrace.testing.inside.trace import Stage

SYNTHETIC = {
    "colocated": Workload(steps=10, prompts=8, group=4),
    "one-step-off": Workload(placement="one-step-off", steps=10, prompts=8, group=4, env_s=0.2),
    "async": Workload(placement="async", steps=10, prompts=8, group=4, unknown_versions=0.1),
    "on CPU": Workload(gpus=0, steps=5, prompts=4, group=4),
    "crashed": Workload(placement="async", steps=10, prompts=8, kill_step=5, torn=True, nodes=2),
    "many lags": Workload(placement="async", steps=60, prompts=8, group=4, lags=(1.0,) * 40),
    "one step": Workload(steps=1, warmup_steps=0, prompts=4, group=4),
}

Summaries = Callable[[str], Summary]

KINDS = (*SYNTHETIC, "empty", "no steps", "hung")


def run_of_kind(kind: str, path: Path) -> Run:
    """A run of that kind, made in `path`."""
    if kind in SYNTHETIC:
        make(path / "run", SYNTHETIC[kind])
        return rltrace.open_run(path / "run")
    if kind == "empty":
        return run_of(path)
    if kind == "no steps":
        return run_of(path, process("driver", (Stage.ROLLOUT, 0, 6), (Stage.TRAIN, 6, 8)))
    driver = process("driver", (("step", 0), 0, 2), (("step", 1), 2, -1), (Stage.WAIT, 2.5, -1))
    worker = process("rollout", (Stage.ROLLOUT, 0, 1), (Stage.ROLLOUT, 2, -1))
    return run_of(path, driver, worker, end_real_ns=at(200), exit_code=-9)


def rendered(found: Summary, width: int = 100, own_figures: bool = False) -> str:
    """The report on a terminal."""
    out = io.StringIO()
    terminal.render(found, Console(file=out, width=width), own_figures)
    return out.getvalue()


def words_of(found: Summary) -> str:
    """The report's text on one line, without its frame."""
    return " ".join(rendered(found).replace("│", "").split())
