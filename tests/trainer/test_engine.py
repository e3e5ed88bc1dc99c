"""Generation: what a trajectory says about itself is true, whatever happens while it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rltrace.testing.inside.trainer import (
    ASK,
    END,
    ModelShape,
    Request,
    Trajectory,
    Transformer,
    response_log_probs,
)
from rltrace.trainer.learning.engine import Engine
from rltrace.trainer.learning.engine import Sequence as Sample
from tests.trainer.local import asynchronous, run

LONGEST_RESPONSE = 9
SHAPE = ModelShape(vocabulary=6, context=6 + LONGEST_RESPONSE, width=32, layers=2, heads=2)
CALL = 5


def engine(max_running: int = 4, policy: int = 1, **settings: Any) -> Engine:
    return Engine(Transformer(SHAPE, policy), max_running, LONGEST_RESPONSE, **settings)


def requests(count: int) -> list[Request]:
    prompts = [(2, 3, ASK), (4, ASK), (3, 3, 2, 5, 4, ASK)]
    return [Request(f"r{i}", f"g{i // 2}", prompts[i % 3]) for i in range(count)]


async def one(engine: Engine, request: Request, seed: str = "0") -> Trajectory:
    """A sample of one turn."""
    sequence = engine.submit(request, seed)
    await engine.extend(sequence)
    return engine.finish(sequence)


async def every(engine: Engine, asked: Iterable[Request], seed: str = "0") -> list[Trajectory]:
    return list(await asyncio.gather(*(one(engine, request, seed) for request in asked)))


def generate(engine: Engine, asked: Sequence[Request], seed: str = "0") -> list[Trajectory]:
    return run(every(engine, asked, seed))


def saying(tokens: Sequence[int], engine: Engine) -> Engine:
    """The policy can say nothing but these tokens."""
    with torch.no_grad():
        engine.model.norm.bias[0] = 1e4
        engine.model.head.weight[:, 0] = -1
        engine.model.head.weight[tokens, 0] = 0
    return engine


def never_ending(**settings: Any) -> Engine:
    """It can neither end a response nor call."""
    return saying([ASK, 2, 3, 4], engine(**settings))


# --- what is sampled ---------------------------------------------------------------------------


def test_every_request_is_answered_and_ends_by_itself_or_at_the_limit() -> None:
    done = generate(engine(), requests(40))
    assert [t.id for t in done] == [r.id for r in requests(40)]
    for trajectory in done:
        inner, last = trajectory.tokens[:-1], trajectory.tokens[-1]
        assert END not in inner
        assert trajectory.finish == ("stop" if last == END else "length")
        assert last == END or len(trajectory.tokens) == LONGEST_RESPONSE
        assert trajectory.generated.all()
        assert (trajectory.turns, trajectory.preemptions, trajectory.env_seconds) == (1, 0, 0)
        assert trajectory.faithful
    assert {t.finish for t in done} == {"stop", "length"}


def test_a_seed_and_a_request_decide_what_is_sampled_whatever_it_is_batched_with() -> None:
    def sampled(max_running: int, count: int, seed: str) -> dict[str, list[int]]:
        done = generate(engine(max_running), requests(count)[::-1], seed)
        return {t.id: t.tokens.tolist() for t in done}

    together = sampled(4, 24, "5")
    assert sampled(4, 24, "5") == together
    assert sampled(1, 24, "5") == sampled(24, 24, "5") == together
    alone = sampled(4, 1, "5")
    assert alone == {"r0": together["r0"]}
    assert sampled(4, 24, "6") != together
    samples_of_a_prompt = {tuple(together[f"r{i}"]) for i in range(0, 24, 3)}
    assert len(samples_of_a_prompt) > 1  # each has random numbers of its own


def test_samples_follow_the_policy() -> None:
    """3,000 first tokens against the probabilities, by a chi-square with 5 degrees of freedom."""
    prompt = (2, 3, ASK)
    sampler = Engine(Transformer(SHAPE, seed=1), max_running=3000, max_response=1)
    done = generate(sampler, [Request(str(i), "g", prompt) for i in range(3000)], "2")
    logits, _ = sampler.model.prefill(torch.tensor([prompt]), torch.tensor([3]))
    expected = 3000 * logits[0].softmax(-1).detach().numpy()
    seen = np.bincount([t.tokens[0] for t in done], minlength=6)
    assert ((seen - expected) ** 2 / expected).sum() < 20.5  # exceeded once in 1,000 seeds


def test_at_most_max_running_sequences_decode_at_once_and_places_are_refilled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    decode = Transformer.decode

    def counted(model: Transformer, token: torch.Tensor, *rest: Any) -> torch.Tensor:
        sizes.append(len(token))
        return decode(model, token, *rest)

    monkeypatch.setattr(Transformer, "decode", counted)
    done = generate(engine(), requests(30))
    assert max(sizes) == 4
    in_order = [len(t.tokens) for t in done]
    in_waves = sum(max(in_order[i : i + 4]) - 1 for i in range(0, 30, 4))
    assert len(sizes) < in_waves


# --- turns ---------------------------------------------------------------------------------------


async def episode(engine: Engine, request: Request, answer: list[int]) -> Trajectory:
    """Every call is answered by the same tokens."""
    sequence = engine.submit(request, "0")
    await engine.extend(sequence)
    while not sequence.finish:
        assert sequence.tokens[-1] == CALL
        sequence.observe(answer)
        await engine.extend(sequence)
    return engine.finish(sequence)


@pytest.mark.parametrize("answer", [[3], []])
def test_a_call_ends_a_turn_and_generation_goes_on_behind_the_answer(answer: list[int]) -> None:
    async def work() -> list[Trajectory]:
        sampler = Engine(Transformer(SHAPE, 1), 4, LONGEST_RESPONSE - len(answer), CALL)
        return list(await asyncio.gather(*(episode(sampler, r, answer) for r in requests(40))))

    done = run(work())
    assert max(t.turns for t in done) > 2
    for t in done:
        calls = [i for i in range(len(t.tokens)) if t.generated[i] and t.tokens[i] == CALL]
        answered = [i for i in calls if i + 1 < len(t.tokens)]
        assert t.turns == 1 + len(answered)
        assert (~t.generated).sum() == len(answer) * len(answered)
        for call in answered:
            assert t.tokens[call + 1 : call + 1 + len(answer)].tolist() == answer
            assert not t.generated[call + 1 : call + 1 + len(answer)].any()
        assert t.response_tokens == len(t.log_probs) == t.generated.sum()
    recomputed = response_log_probs(Transformer(SHAPE, 1), done)
    for t, log_probs in zip(done, recomputed, strict=True):
        np.testing.assert_allclose(t.log_probs, log_probs, atol=1e-5)


@asynchronous
async def test_a_sequence_that_waits_for_its_tool_takes_no_place_in_the_batch() -> None:
    sampler = saying([CALL], engine(max_running=1, call_token=CALL))
    waits, other = (sampler.submit(request, "0") for request in requests(2))
    await sampler.extend(waits)
    assert not waits.finish
    await sampler.extend(other)
    assert other.tokens == waits.tokens == [CALL]


# --- ended from outside --------------------------------------------------------------------------


@asynchronous
async def test_an_abort_ends_what_waits_at_once_and_what_runs_and_nothing_else() -> None:
    sampler = never_ending(max_running=2, decode_floor=0.001)
    tasks = [asyncio.create_task(one(sampler, r)) for r in requests(4)]
    while not (sampler.running and len(sampler.running[0].tokens) >= 3):
        await asyncio.sleep(0)
    sampler.abort(["r3", "of another worker"])
    waited = await tasks[3]  # no place has become free for it
    assert not any(task.done() for task in tasks[:3])
    sampler.abort(["r0"])
    ran, *others, _ = await asyncio.gather(*tasks)
    sampler.abort(["r0"])  # too late: it has ended
    assert not sampler.open
    assert [t.finish for t in (ran, *others, waited)] == ["abort", "length", "length", "abort"]
    assert 3 <= len(ran.tokens) == len(ran.log_probs) < LONGEST_RESPONSE
    assert (len(waited.tokens), waited.first_version) == (0, -1)


@asynchronous
async def test_a_token_is_given_out_when_its_step_is_over_not_before() -> None:
    paced = engine(decode_floor=0.05)
    (request,) = requests(1)
    sequence = paced.submit(request, "0")
    await paced.extend(sequence)
    assert paced.loop is not None
    for _ in range(2):  # the engine has nothing to wait for any more
        await asyncio.sleep(0)
    assert paced.loop.done()


@asynchronous
async def test_weights_that_come_during_a_paced_step_do_not_touch_a_turn_that_has_ended() -> None:
    paced = engine(call_token=CALL, decode_floor=0.02)
    sampled = [paced.submit(request, "7") for request in requests(12)]
    turns = [asyncio.create_task(paced.extend(sequence)) for sequence in sampled]
    version = 0
    while not all(turn.done() for turn in turns):
        await asyncio.sleep(0.005)
        version += 1
        paced.renew(version)
    calls = [s for s in sampled if not s.finish]
    assert calls
    for sequence in calls:
        assert sequence.tokens.index(CALL) == len(sequence.tokens) - 1


def test_the_time_of_a_trajectory_counts_from_when_it_leaves_the_queue() -> None:
    timed = never_ending(max_running=1, timeout=0.1, decode_floor=0.03)
    done = generate(timed, requests(4))
    assert {t.finish for t in done} == {"timeout"}
    assert all(1 <= len(t.tokens) < LONGEST_RESPONSE for t in done)


@pytest.mark.parametrize("broken", ["prefill", "decode"])
@asynchronous
async def test_an_error_of_the_model_reaches_all_who_wait_and_later_ones_are_served(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    sampler = never_ending(max_running=2)
    with monkeypatch.context() as patch:
        patch.setattr(Transformer, broken, lambda *_: 1 / 0)
        found = await asyncio.gather(
            *(one(sampler, r) for r in requests(5)), return_exceptions=True
        )
    assert [type(error) for error in found] == [ZeroDivisionError] * 5
    assert len(await every(sampler, requests(5))) == 5


# --- new weights ---------------------------------------------------------------------------------


def policies() -> list[dict[str, torch.Tensor]]:
    """Three versions of the weights, far from each other."""
    versions = []
    for seed in range(3):
        model = Transformer(SHAPE, seed)
        with torch.no_grad():
            model.head.weight *= 8
        versions.append(model.state_dict())
    return versions


def test_new_weights_in_the_middle_are_exact_from_the_next_token_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = policies()
    sampled_by: dict[str, list[int]] = {}
    sample = Engine._sample

    def noted(self: Engine, rows: list[Sample], logits: torch.Tensor) -> None:
        sample(self, rows, logits)
        for row in rows:
            sampled_by.setdefault(row.request.id, []).append(self.version)

    monkeypatch.setattr(Engine, "_sample", noted)

    async def work() -> list[Trajectory]:
        sampler = engine(max_running=4)
        sampler.model.load_state_dict(versions[0])
        tasks = [asyncio.create_task(one(sampler, r)) for r in requests(16)]
        for version in (1, 2):
            for _ in range(4):
                await asyncio.sleep(0)
            assert sampler.running
            sampler.model.load_state_dict(versions[version])
            sampler.renew(version)
        return list(await asyncio.gather(*tasks))

    done = run(work())
    scorers = [Transformer(SHAPE) for _ in versions]
    for scorer, state in zip(scorers, versions, strict=True):
        scorer.load_state_dict(state)
    by_version = [response_log_probs(scorer, done) for scorer in scorers]
    for row, t in enumerate(done):
        by = sampled_by[t.id]
        assert (t.first_version, t.last_version) == (by[0], by[-1])
        exact = [by_version[version][row][place] for place, version in enumerate(by)]
        np.testing.assert_allclose(t.log_probs, exact, atol=1e-4)
        # It was read anew once for each change while it ran; one may come after its last token.
        assert by[-1] - by[0] <= t.preemptions <= 2
    assert {t.last_version - t.first_version for t in done} >= {0, 1, 2}
    wrong = [abs(by_version[0][row] - t.log_probs).max() for row, t in enumerate(done)]
    assert max(wrong) > 0.5  # the versions could have been told apart


def test_what_runs_comes_before_what_waits_when_weights_are_renewed() -> None:
    async def work() -> list[str]:
        sampler = never_ending(max_running=2)
        ended: list[str] = []

        async def watched(request: Request) -> None:
            ended.append((await one(sampler, request)).id)

        tasks = [asyncio.create_task(watched(r)) for r in requests(6)]
        for _ in range(3):
            await asyncio.sleep(0)
        sampler.renew(1)
        await asyncio.gather(*tasks)
        return ended

    assert run(work()) == [f"r{i}" for i in range(6)]


@asynchronous
async def test_a_drain_waits_for_what_runs_and_lets_nothing_begin() -> None:
    sampler = never_ending(max_running=2)
    tasks = [asyncio.create_task(one(sampler, r)) for r in requests(6)]
    while not sampler.running:
        await asyncio.sleep(0)
    await sampler.drain()
    assert not sampler.running
    assert len(sampler.waiting) == 4
    sampler.renew(1)
    done = await asyncio.gather(*tasks)
    assert [(t.first_version, t.last_version) for t in done] == [(0, 0)] * 2 + [(1, 1)] * 4
    assert {t.preemptions for t in done} == {0}


@asynchronous
async def test_drains_may_overlap_and_generation_goes_on_after_the_last() -> None:
    sampler = engine(max_running=2)
    tasks = [asyncio.create_task(one(sampler, r)) for r in requests(12)]
    for version in range(1, 4):
        await asyncio.sleep(0)

        async def renewed(version: int = version) -> None:
            await sampler.drain()
            assert not sampler.running
            sampler.renew(version)

        tasks += [asyncio.create_task(renewed()), asyncio.create_task(renewed())]
    done = [t for t in await asyncio.gather(*tasks) if t is not None]
    assert len(done) == 12
    assert all(t.first_version == t.last_version for t in done)
