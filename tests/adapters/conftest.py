"""Functions that are hooked as an adapter's, and what this process has then recorded of them; and
traced jobs of the built-in trainer, one of each kind, each run once for all tests.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.adapters import engine, training
from rltrace.testing.inside.adapters import openrlhf_controller as controller
from rltrace.testing.inside.adapters import openrlhf_controller as fates
from rltrace.testing.inside.adapters import openrlhf_verdicts as agents
from rltrace.testing.inside.hooks import Adapter, Observer, Patch, Recorder, split_target, wrap
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.conftest import MadeOnce
from tests.hooks.conftest import WRAP, untraced

Rows = Callable[[str], list[tuple[Any, ...]]]
CAPTURED = "select prompt_token_ids, response_token_ids from captured order by all"


def hooked_as(adapter: type[Adapter], *names: str) -> Callable[[Any], Any]:
    """Decorates what stands for functions of a framework, by the ends of their targets: a function,
    or a class with methods of theirs. It is hooked as the adapter hooks those."""

    def of(made: Any) -> Any:
        for hook in adapter.hooks:
            module, qualname = split_target(hook.target)
            owner, _, method = qualname.rpartition(".")
            if isinstance(made, type):
                if {owner, f"{module}:{owner}"} & {*names} and method in vars(made):
                    Patch(made, method, Observer(hook))
            elif {qualname, hook.target} & {*names}:
                made = wrap(made, Observer(hook))
        return made

    return of


@pytest.fixture
def recorder(capturing: Recorder) -> Recorder:
    """This process records, token ids too."""
    return capturing


@pytest.fixture
def rows(recorder: Recorder, run_path: Path) -> Iterator[Rows]:
    """What a query finds of what this process records. In the end every reader could read."""

    def found(query: str) -> list[tuple[Any, ...]]:
        return rltrace.open_run(run_path).sql(query).fetchall()

    yield found
    problems = rltrace.open_run(run_path).problems
    assert [
        p for p in problems if p["what"] not in ("no-gpu", "step-failed", "process-failed")
    ] == []


TRAIN = Path(__file__).parents[2] / "examples/train.py"
SMALL = {
    "prompts": 2, "samples": 4, "max-running": 6, "minibatches": 2, "symbols": 8,
    "model-size": 0.05, "layers": 1, "heads": 2,
}  # fmt: skip
LONG = {"max-response": 80, "decode-floor": 0.005}
"""Responses long enough for versions to pass meanwhile; most end by chance before the limit."""

JOBS: dict[str, dict[str, Any]] = {
    "colocated": {"placement": "colocated", "steps": 4, "prompts": 4, "symbols": 3, "longest": 3},
    "disaggregated": {"placement": "disaggregated", "steps": 4},
    "one-step-off": {"placement": "one-step-off", "steps": 5, **LONG},
    "async": {"placement": "async", "steps": 14, "max-lag": 1, **LONG},
    "tools": {
        "placement": "disaggregated", "steps": 3, "task": "lookup", "symbols": 3, "longest": 2,
        "shortest": 1, "warm-start": 20, "max-response": 9, "prompts": 4, "oversample": 1.5,
        "env-latency": 0.3, "env-tail": 2.0, "env-failure-rate": 0.15, "timeout": 0.6,
        "max-running": 12, "drop-truncated": True,
    },
    "text": {
        "placement": "colocated", "steps": 3, "merges": 4, "retokenize": True, "oversample": 3,
        "recompute-old": True, "reference-side": "learner", "prompts": 4, "max-running": 3,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Traced:
    """A traced job: its run, and what the trainer's own ledger says."""

    run: Run
    ledger: dict[str, Any]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The records of all steps."""
        return list(self.ledger["steps"])

    @property
    def records(self) -> list[dict[str, Any]]:
        """Those, and of what came in once the last step had ended."""
        return [*self.steps, self.ledger["after"]]

    def total(self, name: str) -> int:
        """A number of the records, over all of them."""
        return sum(record[name] for record in self.records)

    def counts(self, name: str) -> dict[Any, int]:
        """Counts by a key, over all records; lags as numbers."""
        counted: Counter[str] = Counter()
        for record in self.records:
            counted.update(record[name])
        return {int(k) if k.lstrip("-").isdigit() else k: n for k, n in counted.items()}

    def rows(self, query: str) -> list[Any]:
        """The rows of a query; bare values where it has one column."""
        found = self.run.sql(query).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]


WRAPPED = (*WRAP, "--out", "run")


def train(folder: Path, settings: dict[str, Any], wrap: Sequence[str] = WRAPPED) -> dict[str, Any]:
    """Runs a job in a folder, by default traced into `run` there; its ledger."""
    flags = [
        f"--{name}" + ("" if value is True else f"={value}") for name, value in settings.items()
    ]
    command = [*wrap, *(["--"] if wrap else []), sys.executable, str(TRAIN)]
    command += ["--ledger", "ledger.json", *flags]
    done = untraced(*command, cwd=folder, RAY_memory_monitor_refresh_ms="0")
    assert done.returncode == 0, done.stderr
    ledger: dict[str, Any] = json.loads((folder / "ledger.json").read_text())
    return ledger


@pytest.fixture(scope="session")
def traced_job(made_once: MadeOnce) -> Callable[[str], Traced]:
    """The traced job of a name."""
    known: dict[str, Traced] = {}

    def job(name: str) -> Traced:
        if name not in known:
            folder = made_once(f"job-{name}", lambda folder: train(folder, SMALL | JOBS[name]))
            ledger = json.loads((folder / "ledger.json").read_text())
            known[name] = Traced(rltrace.open_run(folder / "run"), ledger)
        return known[name]

    return job


@pytest.fixture
def fresh_openrlhf() -> Iterator[None]:
    """What the OpenRLHF adapter keeps in a process is as each process begins with."""
    engine._update.clear()
    engine._done.clear()
    engine._spent_ns.update(dict.fromkeys(engine._spent_ns, 0))
    controller.loop.__dict__.clear()
    fates._filtering.clear()
    training._models.clear()
    agents._watched.clear()
    yield
    controller.loop.__dict__.clear()
