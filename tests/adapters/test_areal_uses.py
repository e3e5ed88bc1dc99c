"""AReaL: what became of samples has the number of the step that is open when it is committed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rltrace
from rltrace.adapters.areal import samples
from rltrace.testing.inside.hooks import Hook, Observer, Recorder, replacement


class Use:
    """A row; another one is made as its step is set, as by the executor's thread."""

    def __init__(self, meanwhile: Use | None = None) -> None:
        self.meanwhile, self.step = meanwhile, -1

    def set(self, step: int) -> None:
        self.step = step
        if self.meanwhile is not None:
            samples._uses.append(self.meanwhile)


@pytest.mark.parametrize("others", [0, 3])
def test_a_sample_that_is_given_up_meanwhile_is_of_the_next_step(others: int) -> None:
    late = Use()
    first = [Use(late), *(Use() for _ in range(others))]
    samples._uses.extend(first)
    recorder: Any = SimpleNamespace(step=5)
    samples.uses_are_of(recorder)
    assert [use.step for use in first] == [5] * len(first)
    assert late.step == -1
    recorder.step = 6
    samples.uses_are_of(recorder)
    assert late.step == 6
    assert not samples._uses


class Engine:
    """AReaL's, which answers each request with two tokens."""

    engine_id = "engine"

    def __init__(self, max_age: int) -> None:
        self.config = SimpleNamespace(max_head_offpolicyness=max_age)

    def get_version(self) -> int:
        """Of the weights."""
        return 3

    async def agenerate(self, req: Any) -> Any:
        """A request."""
        tokens = [len(req.input_ids), 7]
        return SimpleNamespace(
            output_tokens=tokens,
            output_versions=[3, 3],
            output_logprobs=[0.0, 0.0],
            stop_reason="stop",
        )


class Dispatcher:
    """AReaL's, with the result of one task."""

    def __init__(self, engine: Engine, result: Any) -> None:
        self.staleness_manager = SimpleNamespace(version_provider=engine)
        self.result = result

    def wait_results(self) -> list[Any]:
        """What has come."""
        return [self.result]


@pytest.mark.parametrize(("max_age", "fates"), [(4, ["trained"]), (10**12, [])])
def test_before_0_5_2_an_evaluation_is_told_by_its_engine(
    monkeypatch: pytest.MonkeyPatch,
    recorder: Recorder,
    run_path: Path,
    max_age: int,
    fates: list[str],
) -> None:
    """There a task does not say it: `areal.core.workflow_context` came later."""
    for name in ("areal.infra.workflow_context", "areal.core.workflow_context"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    tracer = SimpleNamespace(get_task_id=lambda: 5)
    monkeypatch.setitem(sys.modules, "areal.utils.perf_tracer", tracer)
    asked = Hook(
        "m:Engine.agenerate", "rollout", before=samples.request_begins, after=samples.request_ends
    )
    waited = Hook("m:Dispatcher.wait_results", after=samples.taken)
    for kind, name, hook in (
        (Engine, "agenerate", asked),
        (Dispatcher, "wait_results", waited),
    ):
        monkeypatch.setattr(kind, name, replacement(vars(kind)[name], Observer(hook)))
    engine = Engine(max_age)
    asyncio.run(engine.agenerate(SimpleNamespace(rid="one", input_ids=[4, 5])))
    sample = {
        "input_ids": torch.tensor([[4, 5, 2, 7]]),
        "loss_mask": torch.tensor([[0, 0, 1, 1]]),
    }
    Dispatcher(engine, SimpleNamespace(task_id=5, trajectory=sample)).wait_results()
    run = rltrace.open_run(run_path)
    assert run.problems == []
    assert run.sql("SELECT response_tokens FROM trajectories").fetchall() == [(2,)]
    assert [fate for (fate,) in run.sql("SELECT fate FROM uses").fetchall()] == fates
    assert not samples._answers
    samples._uses.clear()
