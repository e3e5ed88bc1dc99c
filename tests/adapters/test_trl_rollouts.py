"""Conversations in the process that generates for TRL's asynchronous trainer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.adapters import Ids, rollouts
from rltrace.testing.inside.hooks import recorder as recording
from tests.adapters.trl_shapes import END, Taken, hook_loop, message, no_problems, rows


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is left of the test before."""
    rollouts._waiting.clear()


class Loop:
    """A rollout process: conversations whose verdicts come a group at a time."""

    model_version = 1
    max_tokens = 4
    eos_token_ids = (END,)
    reward_func_names = ("one",)

    def __init__(self) -> None:
        self.reward_funcs = [lambda: None]

    async def _generate_one(self, prompt: Any, turns: list[list[int]]) -> Any:
        for ids in turns:
            await self._generate_one_turn(ids)
            self.model_version += 1
        return ([message("assistant")], [], None)

    async def _generate_one_turn(self, ids: list[int]) -> Any:
        await asyncio.sleep(0)
        return ids, [0.0] * len(ids)

    async def _score_group(self, samples: list[Taken]) -> list[Taken]:
        return samples


hook_loop(Loop)


def test_a_conversation_of_several_rows_is_several_samples(
    recorder: recording.Recorder, run_path: Path
) -> None:
    async def roll_out() -> list[Taken]:
        worker = Loop()
        said, *_ = await worker._generate_one("prompt", [[4, 4, 4, 4], [4, END]])
        forks = [
            Taken([1, 4, 4], [0, 1, 1], 1, said, one=0.5),
            Taken([1, 2, 4], [0, 0, 1], 1, said),
        ]
        return await worker._score_group(forks)

    forks = asyncio.run(roll_out())
    found = rows(
        run_path,
        "select trajectory, response_tokens, prompt_tokens, turns, finish, first_version,"
        " last_version from trajectories order by response_tokens desc",
    )
    taken = Ids()
    first, second = (taken.of(fork) for fork in forks)
    assert found == [(first, 2, 1, 2, "stop", 1, 3), (second, 1, 2, 2, "stop", 1, 3)]
    assert rows(run_path, 'select count(distinct "group"), count("group") from trajectories') == [
        (1, 2)
    ]
    assert rows(run_path, "select trajectory, value, outcome from rewards order by value") == [
        (first, 0.5, "ok"),
        (second, None, "error"),
    ]
    assert not rollouts._waiting
    assert no_problems(run_path)


def test_conversations_that_nobody_judges_make_room_for_others(
    recorder: recording.Recorder, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "_MOST", 2)

    async def roll_out() -> None:
        worker = Loop()
        said = [(await worker._generate_one("prompt", [[4, END]]))[0] for _ in range(3)]
        assert len(rollouts._waiting) == 2
        await worker._score_group([Taken([1, 4], [0, 1], 1, said[-1], one=0.5)])

    asyncio.run(roll_out())
    assert rows(run_path, "select value from rewards where outcome = 'ok'") == [(0.5,)]


def test_a_conversation_that_is_cancelled_is_aborted(
    recorder: recording.Recorder, run_path: Path
) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(Loop()._generate_one("prompt", [[4]] * 1000))
        for _ in range(10):  # it is at its tenth turn by then, on any machine
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    assert rows(run_path, "select finish, count(end_ns) from trajectories group by 1") == [
        ("abort", 1)
    ]
