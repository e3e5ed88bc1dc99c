"""verl: an agent loop that tokenizes its turns anew is flagged, one that keeps them is not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.testing.inside.adapters import verl_rollout as rollout
from rltrace.testing.inside.hooks import recorder as recording
from tests.adapters.verl_shapes import Worker, hooked, output, rows

A, B, AB, TOOL, END = 1, 2, 3, 8, 9


class Loop(Worker):
    """An agent loop of the user's: what it trains on, and where."""

    def __init__(self, turns: list[list[int]], ids: list[int], mask: list[int]) -> None:
        self.turns, self.ids, self.mask = turns, ids, mask

    async def _run(self, trajectory: dict[str, Any], **fields: Any) -> None:
        for ids in self.turns:
            given = SimpleNamespace(token_ids=ids, stop_reason="completed", extra_fields={})
            await self.generate(given)
            ids.clear()  # it may do with them what it likes
        made = output(len(self.ids))
        made.response_ids, made.response_mask = self.ids, self.mask
        made.response_logprobs = [0.0] * len(self.ids)
        await self.compute_score([made], fields)

    run = hooked(_run, before=rollout.begins, after=rollout.ends)


@pytest.mark.parametrize(
    ("turns", "ids", "mask", "kept"),
    [
        ([[A, B, END]], [A, B, END], [1, 1, 1], 1),
        ([[A, B, END]], [AB, END], [1, 1], 0),
        ([[A, B, END], [A, END]], [A, B, END, TOOL, A, END], [1, 1, 1, 0, 1, 1], 1),
        ([[A, B, END], [A, END]], [AB, END, TOOL, A, END], [1, 1, 0, 1, 1], 0),
        ([[A, B], [A, END]], [A, B, A, END], [1, 1, 1, 1], 1),  # interrupted, and resumed
        ([[A, B, END], [A, END]], [A, END], [1, 1], 1),  # the loop has dropped a turn
        ([[A, B, END]], [A, B], [1, 1], 1),  # as long as responses may be
        ([[A, B, END]], [A, B, END, TOOL], [1, 1, 1, 1], 0),  # what a tool says counts as sampled
        ([], [A, B], [1, 1], None),  # it has asked over an API of its own
    ],
)
def test_tokens_are_those_that_servers_gave(
    recorder: recording.Recorder,
    run_path: Path,
    turns: list[list[int]],
    ids: list[int],
    mask: list[int],
    kept: int | None,
) -> None:
    asyncio.run(Loop(turns, ids, mask).run({"validate": False}, uid="u", session_id=0))
    assert rows(run_path, "select token_ids, logprobs from trajectories") == [(kept, 1)]
