"""Two turns and a tool: "bca?ed=ed." is a query, the call, the tool's answer, the policy's own."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.task import Task, similarity

VALUE_LENGTH = 2


class Lookup(Task):
    """A table that holds a value for every string: too many to learn them, so it must be asked."""

    def __init__(self, config: TrainerConfig) -> None:
        super().__init__(config, marks="?")
        self.call_token = self.vocabulary - 1

    def solution(self, question: str) -> str:
        draw = random.Random(f"table/{question}")
        return "".join(draw.choice(self.symbols) for _ in range(VALUE_LENGTH))

    @property
    def longest_response(self) -> int:
        return self.config.longest + 1 + (VALUE_LENGTH + 1) + VALUE_LENGTH + 1

    def tool(self, prompt: Sequence[int], response: Sequence[int]) -> list[int] | None:
        """The value for what was written since the last "=" and was called with, then `ASK`."""
        if not response or response[-1] != self.call_token:
            return None
        query = self.text(response[:-1]).rpartition("=")[2]
        return self.tokenize(self.solution(query) + "=")

    def demonstration(self, prompt: Sequence[int]) -> tuple[list[int], list[bool]]:
        """Query and call, the tool's answer, the same as the policy's."""
        call = [*prompt[:-1], self.vocabulary - 1]
        told = self.tool(prompt, call) or []
        answer = self.answer(prompt)
        owners = [True] * len(call) + [False] * len(told) + [True] * len(answer)
        return [*call, *told, *answer], owners

    def score(self, question: str, response: str) -> float:
        """Half for the query, half for saying what the table told to it; 0 without a call."""
        query, call, rest = response.partition("?")
        told, _, answer = rest.partition("=")
        if not call or not told:
            return 0.0
        return 0.5 * similarity(query, question) + 0.5 * similarity(answer, told)
