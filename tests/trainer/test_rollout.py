"""A rollout worker without Ray: episodes with a tool, and weights that come while it works."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rltrace.testing.inside.sync import PublishedVersion as Manifest
from rltrace.testing.inside.trainer import (
    Request,
    TrainerConfig,
    Trajectory,
    Transformer,
    initial_weights,
    policy_of,
    response_log_probs,
    task_of,
)
from rltrace.trainer.rollout import Environment, RolloutWorker, ToolFailed
from tests.trainer.local import InProcess, asynchronous, run

SMALL = TrainerConfig(
    task="lookup", symbols=3, longest=3, max_response=14, model_size=0.024, layers=2, heads=2,
    warm_start=60, max_running=5,
)  # fmt: skip
"""Mostly right: it calls the tool and ends."""


@pytest.fixture(scope="module")
def weights() -> NDArray[np.uint8]:
    return initial_weights(SMALL)


def requests(config: TrainerConfig, count: int) -> list[Request]:
    prompts = task_of(config).prompts(count, "0")
    return [Request(f"0/{i}/0", f"0/{i}", prompt) for i, prompt in enumerate(prompts)]


def generated(config: TrainerConfig, weights: NDArray[np.uint8], count: int) -> list[Trajectory]:
    worker = RolloutWorker(config, 0, weights)
    done = run(worker.generate(requests(config, count)))
    assert not worker.engine.open
    assert [Request(t.id, t.group, t.prompt) for t in done] == requests(config, count)
    return done


def with_transport(worker: RolloutWorker, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    transport = InProcess()
    monkeypatch.setattr(worker.subscriber, "fetch", transport.fetch)
    return transport


# --- episodes ------------------------------------------------------------------------------------


def test_an_episode_asks_the_tool_and_goes_on_with_its_answer(weights: NDArray[np.uint8]) -> None:
    task = task_of(SMALL)
    done = generated(SMALL, weights, 40)
    two_turns = [t for t in done if t.turns == 2 and t.finish == "stop"]
    assert len(two_turns) > 10
    for t in two_turns:
        told = t.tokens[~t.generated].tolist()
        call = t.tokens.tolist().index(task.call_token)
        assert told == task.tool(t.prompt, t.tokens[: call + 1].tolist())
        assert t.tokens[call + 1 : call + 1 + len(told)].tolist() == told
    for t, log_probs in zip(done, response_log_probs(policy_of(SMALL, weights), done), strict=True):
        np.testing.assert_allclose(t.log_probs, log_probs, atol=1e-4)
    assert np.mean([task.reward(t.prompt, t.tokens.tolist()) for t in two_turns]) > 0.4


def test_calls_that_fail_end_the_sample_in_an_error_as_often_as_was_set(
    weights: NDArray[np.uint8],
) -> None:
    config = dataclasses.replace(SMALL, env_failure_rate=1.0)
    done = generated(config, weights, 30)
    assert {t.finish for t in done} <= {"error", "stop", "length"}
    failed = [t for t in done if t.finish == "error"]
    assert len(failed) > 10
    assert all(t.generated.all() and t.tokens[-1] == task_of(SMALL).call_token for t in failed)
    assert all(t.turns == 1 for t in done)

    environment = Environment(dataclasses.replace(SMALL, env_failure_rate=0.25))
    call = task_of(SMALL).demonstration(requests(SMALL, 1)[0].prompt)[0][:3]

    async def fails(id: str) -> bool:
        try:
            await environment.call(id, (), call)
        except ToolFailed:
            return True
        return False

    share = np.mean([run(fails(str(i))) for i in range(400)])
    assert 0.18 < share < 0.32  # 3 standard deviations
    assert run(fails("7")) == run(fails("7"))


@asynchronous
async def test_latencies_of_calls_have_the_mean_and_tail_that_were_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    environment = Environment(dataclasses.replace(SMALL, env_latency=2.0, env_tail=0.5))
    monkeypatch.setattr("asyncio.sleep", sleep)

    for i in range(2000):
        await environment.call(str(i), (), [2, task_of(SMALL).call_token or 0])
    assert np.mean(slept) == pytest.approx(2.0, rel=0.05)
    assert np.std(slept) / np.mean(slept) == pytest.approx(0.5, rel=0.15)


def test_a_sample_that_is_out_of_time_during_a_call_ends_there(weights: NDArray[np.uint8]) -> None:
    config = dataclasses.replace(SMALL, env_latency=3600.0, timeout=0.5)
    done = generated(config, weights, 12)
    late = [t for t in done if t.finish == "timeout"]
    assert len(late) > 4
    for t in late:
        assert t.generated.all()
    assert any(t.env_seconds > 0 for t in late)


async def aborted(
    config: TrainerConfig, weights: NDArray[np.uint8], ready: Callable[[list[Any]], bool]
) -> list[Trajectory]:
    """Twelve samples that are aborted once they are ready for it."""
    worker = RolloutWorker(config, 0, weights)
    asked = requests(config, 12)
    ended = asyncio.create_task(worker.generate(asked))
    await asyncio.sleep(0)
    while not ready(list(worker.engine.open.values())):
        await asyncio.sleep(0)
    await worker.abort([request.id for request in asked])
    return await ended


def test_an_abort_reaches_a_sample_whose_tool_is_at_work(weights: NDArray[np.uint8]) -> None:
    def ready(samples: list[Any]) -> bool:
        turns_are_over = all(s.turn and s.turn.done() for s in samples)
        return turns_are_over and any(s.call for s in samples)

    config = dataclasses.replace(SMALL, env_latency=3600.0)
    assert "abort" in {t.finish for t in run(aborted(config, weights, ready))}


def test_an_answer_that_does_not_fit_ends_the_sample_at_the_length_limit(
    weights: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Environment, "call", long_answer)
    done = generated(SMALL, weights, 20)
    cut = [t for t in done if t.tokens[-1] == task_of(SMALL).call_token]
    assert cut
    assert {t.finish for t in cut} == {"length"}
    assert all(len(t.tokens) <= SMALL.max_response for t in done)


async def long_answer(*_: object) -> list[int]:
    return [2] * SMALL.max_response


# --- text only -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        TrainerConfig(merges=5, model_size=0.024, layers=2, heads=2),
        dataclasses.replace(SMALL, merges=2),
    ],
)
def test_text_only_rollout_has_the_same_text_in_other_tokens_and_no_log_probs(
    config: TrainerConfig,
) -> None:
    weights, task = initial_weights(config), task_of(config)
    truths = generated(config, weights, 60)
    texts = generated(dataclasses.replace(config, retokenize=True), weights, 60)
    for text, truth in zip(texts, truths, strict=True):
        assert text.tokens.tolist() == task.tokenize(task.text(truth.tokens.tolist()))
        for mark in (True, False):  # what the tool said is kept apart
            said = truth.tokens[truth.generated == mark].tolist()
            assert task.text(text.tokens[text.generated == mark].tolist()) == task.text(said)
        assert (text.faithful, truth.faithful) == (False, True)
        assert np.isnan(text.log_probs).all()
        assert len(text.log_probs) == text.response_tokens
        assert (text.finish, text.first_version) == (truth.finish, truth.first_version)
    drifted = [len(text.tokens) != len(t.tokens) for text, t in zip(texts, truths, strict=True)]
    assert any(drifted)
    assert (max(t.turns for t in truths) > 1) == (task.call_token is not None)


def test_an_aborted_sample_without_a_token_has_no_text_either() -> None:
    config = dataclasses.replace(SMALL, retokenize=True, max_running=1)
    done = run(aborted(config, initial_weights(config), lambda _: True))
    assert [len(t.tokens) for t in done] == [0] * 12


# --- weights -------------------------------------------------------------------------------------


def holds(worker: RolloutWorker, version: int, state: dict[str, torch.Tensor]) -> bool:
    held = worker.engine.model.state_dict()
    same = all(torch.equal(held[name], tensor) for name, tensor in state.items())
    return same and worker.engine.version == version


@pytest.mark.parametrize("partial", [True, False])
def test_weights_that_come_during_generation(
    weights: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch, partial: bool
) -> None:
    """Partial rollout: what runs goes on under them. Otherwise it is waited for."""
    config = TrainerConfig(
        task="sort", model_size=0.024, layers=2, heads=2, max_running=3, partial_rollout=partial
    )
    newer = Transformer(policy_of(config).shape, seed=9)

    async def work() -> list[Trajectory]:
        worker = RolloutWorker(config, 0, initial_weights(config))
        transport = with_transport(worker, monkeypatch)
        ended = asyncio.create_task(worker.generate(requests(config, 30)))
        while not worker.engine.running:
            await asyncio.sleep(0)
        assert await worker.receive(transport.publish(4, newer.state_dict())) > 0
        assert holds(worker, 4, newer.state_dict())
        return await ended

    done = run(work())
    spans = {(t.first_version, t.last_version) for t in done}
    assert ((0, 4) in spans) == partial
    assert any(t.preemptions for t in done) == partial
    assert (4, 4) in spans
    whole = [t for t in done if t.first_version == 4]
    for t, log_probs in zip(whole, response_log_probs(newer, whole), strict=True):
        np.testing.assert_allclose(t.log_probs, log_probs, atol=1e-4)


@asynchronous
async def test_a_manifest_that_was_overtaken_changes_nothing_and_waits_for_nobody(
    weights: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = RolloutWorker(dataclasses.replace(SMALL, partial_rollout=False), 0, weights)
    transport = with_transport(worker, monkeypatch)
    newest, old = (Transformer(worker.engine.model.shape, seed).state_dict() for seed in (1, 2))
    assert await worker.receive(transport.publish(3, newest)) > 0
    assert await worker.receive(transport.publish(2, old)) == 0
    assert await worker.receive(transport.publish(3, old)) == 0
    assert transport.fetched == 1
    assert holds(worker, 3, newest)


@asynchronous
async def test_the_newer_of_two_versions_that_arrive_out_of_order_remains(
    weights: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = RolloutWorker(SMALL, 0, weights)
    transport = InProcess()
    old, newest = (Transformer(worker.engine.model.shape, seed).state_dict() for seed in (1, 2))
    second_is_there = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fetch(manifest: Manifest) -> NDArray[np.uint8]:
        if manifest.version == 1:  # in another thread, as a slow link would
            asyncio.run_coroutine_threadsafe(second_is_there.wait(), loop).result(30)
        return transport.fetch(manifest)

    monkeypatch.setattr(worker.subscriber, "fetch", fetch)
    slow = asyncio.create_task(worker.receive(transport.publish(1, old)))
    await worker.receive(transport.publish(2, newest))
    second_is_there.set()
    await slow
    assert holds(worker, 2, newest)
