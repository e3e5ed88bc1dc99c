"""Agent Lightning 0.3.0: rollouts that its store itself gives up."""

from __future__ import annotations

import asyncio
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.adapters.agentlightning import AgentLightning
from rltrace.testing.inside.hooks import Observer, replacement
from rltrace.testing.inside.hooks import recorder as recording

agentlightning = pytest.importorskip("agentlightning", reason="make test-parts")
MODULE = "agentlightning.store.collection_based"
LIMIT_S = 0.05


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    collection_based = import_module(MODULE)
    for hook in AgentLightning.calls:
        module, _, name = hook.target.partition(":")
        if module == MODULE:
            owner, _, method = name.partition(".")
            kind = getattr(collection_based, owner)
            monkeypatch.setattr(kind, method, replacement(vars(kind)[method], Observer(hook)))


async def begun(**limits: Any) -> tuple[Any, Any]:
    """A store, and a rollout of its own that has run for twice as long as the limit."""
    store: Any = agentlightning.InMemoryLightningStore(scan_debounce_seconds=0)
    config = agentlightning.RolloutConfig(**limits)
    await store.enqueue_rollout("task", mode="train", config=config)
    given = await store.dequeue_rollout()
    await asyncio.sleep(2 * LIMIT_S)
    await store.query_rollouts()  # it looks at what runs before it answers
    return store, given


async def succeed(store: Any, given: Any) -> None:
    await store.update_attempt(given.rollout_id, given.attempt.attempt_id, status="succeeded")


async def run_one(late: bool) -> None:
    """A rollout that takes too long, or just not."""
    store, given = await begun(timeout_seconds=LIMIT_S if late else 100 * LIMIT_S)
    if not late:
        await succeed(store, given)


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize(("late", "finish"), [(True, "timeout"), (False, None)])
def test_a_rollout_that_took_too_long_has_ended_so(
    recorder: recording.Recorder, run_path: Path, late: bool, finish: str | None
) -> None:
    before_ns = time.monotonic_ns()
    asyncio.run(run_one(late))
    run = rltrace.open_run(run_path)
    assert run.problems == []
    [(found, length_ns)] = run.sql("SELECT finish, end_ns - start_ns FROM trajectories").fetchall()
    assert found == finish
    assert LIMIT_S * 1e9 <= length_ns <= time.monotonic_ns() - before_ns


async def run_silent(end: str) -> None:
    """A rollout whose runner says nothing for too long, and what comes then: it is not tried
    again, a runner gets it once more, or the first one is heard of after all."""
    attempts = {"max_attempts": 1 if end == "given up" else 2, "retry_condition": ["unresponsive"]}
    store, first = await begun(unresponsive_seconds=LIMIT_S, **attempts)
    if end == "tried again":
        await asyncio.sleep(2 * LIMIT_S)  # in which nothing runs
        second = await store.dequeue_rollout()
        for given in (second, first):  # the first one's runner is late
            await succeed(store, given)
    if end == "heard of":
        ids = {"rollout_id": first.rollout_id, "attempt_id": first.attempt.attempt_id}
        span = agentlightning.Span.from_attributes(name="tool", attributes={}, sequence_id=1, **ids)
        await store.add_span(span)
        [found] = await store.query_attempts(first.rollout_id)
        assert found.status == "running"
        await succeed(store, first)


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("given up", ["timeout"]),
        ("waits", [None]),  # it may be heard of
        ("tried again", ["timeout", None]),
        ("heard of", [None]),
    ],
)
def test_an_attempt_that_falls_silent_ends_when_its_rollout_does_without_it(
    recorder: recording.Recorder, run_path: Path, end: str, expected: list[str | None]
) -> None:
    asyncio.run(run_silent(end))
    run = rltrace.open_run(run_path)
    assert run.problems == []
    rows = run.sql("SELECT finish, start_ns, end_ns FROM trajectories ORDER BY start_ns").fetchall()
    assert [finish for finish, _, _ in rows] == expected
    if end == "tried again":  # it ended as it was given up, not as another one began
        assert rows[0][2] + 2 * LIMIT_S * 1e9 <= rows[1][1]
