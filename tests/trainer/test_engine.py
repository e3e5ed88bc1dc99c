"""Generation: what a trajectory says about itself is true."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rltrace.trainer.engine import Engine
from rltrace.trainer.grpo import response_log_probs
from rltrace.trainer.model import ModelShape, Transformer
from rltrace.trainer.task import ASK, END
from rltrace.trainer.trajectory import Request

LONGEST_RESPONSE = 9


def requests(count: int) -> list[Request]:
    prompts = [(2, 3, ASK), (4, ASK), (3, 3, 2, 5, 4, ASK)]
    return [Request(f"r{i}", f"g{i // 2}", 0, prompts[i % 3]) for i in range(count)]


@pytest.fixture
def engine() -> Engine:
    shape = ModelShape(vocabulary=6, context=6 + LONGEST_RESPONSE, width=32, layers=2, heads=2)
    return Engine(Transformer(shape, seed=1), max_running=4, max_response=LONGEST_RESPONSE)


def test_every_request_is_answered_once_and_ends_by_itself_or_at_the_limit(engine: Engine) -> None:
    done = engine.generate(requests(40), seed=0)
    assert sorted(t.id for t in done) == sorted(r.id for r in requests(40))
    for trajectory in done:
        inner, last = trajectory.tokens[:-1], trajectory.tokens[-1]
        assert END not in inner
        assert trajectory.finish == ("stop" if last == END else "length")
        assert last == END or len(trajectory.tokens) == LONGEST_RESPONSE
    assert {t.finish for t in done} == {"stop", "length"}


def test_returned_log_probs_are_those_of_the_policy(engine: Engine) -> None:
    done = engine.generate(requests(20), seed=0)
    for trajectory, recomputed in zip(done, response_log_probs(engine.model, done), strict=True):
        assert trajectory.log_probs.shape == trajectory.tokens.shape
        np.testing.assert_allclose(trajectory.log_probs, recomputed, atol=1e-5)


def test_the_seed_decides_what_is_sampled(engine: Engine) -> None:
    def sampled(seed: int) -> list[list[int]]:
        return [t.tokens.tolist() for t in engine.generate(requests(12), seed)]

    assert sampled(5) == sampled(5)
    assert sampled(5) != sampled(6)


def test_at_most_max_running_sequences_decode_at_once_and_places_are_refilled(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    decode = Transformer.decode

    def counted(model: Transformer, token: torch.Tensor, *rest: object) -> torch.Tensor:
        sizes.append(len(token))
        return decode(model, token, *rest)

    monkeypatch.setattr(Transformer, "decode", counted)
    done = engine.generate(requests(30), seed=0)
    assert max(sizes) == 4
    length = {t.id: len(t.tokens) for t in done}
    in_order = [length[r.id] for r in requests(30)]
    in_waves = sum(max(in_order[i : i + 4]) - 1 for i in range(0, 30, 4))
    assert len(sizes) < in_waves


def test_samples_follow_the_policy(engine: Engine) -> None:
    """3,000 first tokens against the probabilities, by a chi-square with 5 degrees of freedom."""
    prompt = (2, 3, ASK)
    engine.max_response = 1
    engine.max_running = 3000
    done = engine.generate([Request(str(i), "g", 0, prompt) for i in range(3000)], seed=2)
    logits, _ = engine.model.prefill(torch.tensor([prompt]), torch.tensor([3]))
    expected = 3000 * logits[0].softmax(-1).detach().numpy()
    seen = np.bincount([t.tokens[0] for t in done], minlength=6)
    assert ((seen - expected) ** 2 / expected).sum() < 20.5  # exceeded once in 1,000 seeds


def test_versions_are_those_of_the_weights_at_first_and_last_token(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.version = 7
    assert {(t.first_version, t.last_version) for t in engine.generate(requests(4), 0)} == {(7, 7)}

    decode = Engine.decode

    def updated_in_flight(self: Engine, *arguments: object) -> None:
        self.version = 8
        decode(self, *arguments)

    monkeypatch.setattr(Engine, "decode", updated_in_flight)
    done = engine.generate(requests(4), 0)
    longer = [t for t in done if len(t.tokens) > 1]
    assert longer
    assert {(t.first_version, t.last_version) for t in longer} == {(7, 8)}
