"""OpenRLHF: an agent whose turns are tokenized anew is flagged, one that keeps them is not."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.adapters import openrlhf_rollout as rollout
from rltrace.testing.inside.hooks import recorder as recording
from tests.adapters.openrlhf_shapes import Answer, Engine, problems, rows

pytestmark = pytest.mark.usefixtures("fresh_openrlhf")

GIVEN, OTHER = 0, 7
"""What the engine gives throughout, and a token that it never gave."""


class Agent:
    """An executor of the user's that asks twice, and says what is to be trained on."""

    def __init__(self, tokens: list[int], log_probs: bool = True) -> None:
        self.tokens, self.log_probs = tokens, log_probs

    async def ask(self, llm_engine: Any) -> None:
        for _ in range(2):
            await llm_engine.generate([1, 2])

    async def execute(self, prompt: str, llm_engine: Any) -> Any:
        await self.ask(llm_engine)
        return {
            "observation_tokens": [1, 2, *self.tokens],
            "action_ranges": [(2, 4), (5, 7)],
            "rollout_log_probs": [0.0] * 7 if self.log_probs else None,
        }


class Serves(Agent):
    """One that serves an API, from a thread, to what asks it."""

    async def ask(self, llm_engine: Any) -> None:
        thread = threading.Thread(target=asyncio.run, args=(super().ask(llm_engine),))
        thread.start()
        await asyncio.to_thread(thread.join)


def kept(run_path: Path, executor: Agent) -> list[tuple[Any, ...]]:
    """What is known of a sample whose turns have two tokens each."""
    actor = Engine(executor, (Answer(2, stamped=False), Answer(2, stamped=False)))
    asyncio.run(actor.generate_responses("p"))
    assert not problems(run_path)
    return rows(run_path, "select token_ids, logprobs from trajectories")


@pytest.mark.parametrize("executor", [Agent, Serves])
@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([GIVEN, GIVEN, OTHER, GIVEN, GIVEN], 1),
        ([GIVEN, OTHER, OTHER, GIVEN, GIVEN], 0),
        ([GIVEN, GIVEN, OTHER, OTHER, GIVEN], 0),
    ],
)
def test_tokens_are_those_that_vllm_gave(
    recorder: recording.Recorder,
    run_path: Path,
    executor: type[Agent],
    tokens: list[int],
    expected: int,
) -> None:
    assert kept(run_path, executor(tokens)) == [(expected, 1)]


def test_log_probs_are_kept_where_the_agent_passes_them_on(
    recorder: recording.Recorder, run_path: Path
) -> None:
    assert kept(run_path, Agent([GIVEN] * 5, log_probs=False)) == [(1, 0)]


def test_what_is_not_all_remembered_is_unknown(
    recorder: recording.Recorder, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "_MOST_ELSEWHERE", 1)
    assert kept(run_path, Serves([OTHER] * 5)) == [(None, 1)]
