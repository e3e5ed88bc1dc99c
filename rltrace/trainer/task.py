"""What is learned: questions whose answers a program can verify and grade.

The prompt "bca=" of the task "sort" asks for "abc."; "." ends a response.
"""

from __future__ import annotations

import random
import re
import string
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from rltrace.trainer.config import TrainerConfig, TrainerError

END = 0  # ends a response, shown as "."
ASK = 1  # ends a prompt, shown as "="


class Task(ABC):
    """Questions, answers, grades. Symbols (default: letters) are a token each; the first `merges`
    pairs of neighbours ("ab", "bc", ...) have one, too, so a text has several tokenizations."""

    call_token: int | None = None  # sampling it calls the tool; None: there is no tool

    def __init__(self, config: TrainerConfig, symbols: str = "", marks: str = "") -> None:
        symbols = symbols or string.ascii_lowercase[: config.symbols]
        self.config = config
        self.name = config.task
        self.symbols = symbols
        merged = [symbols[i : i + 2] for i in range(config.merges)]
        self.pieces = (".", "=", *symbols, *merged, *marks)  # the text of every token id
        self._ids = {piece: token for token, piece in enumerate(self.pieces)}
        longest_first = sorted(self.pieces, key=len, reverse=True)
        self._piece = re.compile("|".join(map(re.escape, longest_first)))

    @abstractmethod
    def solution(self, question: str) -> str:
        """A right response to a question, without the end mark."""

    @property
    @abstractmethod
    def longest_response(self) -> int:
        """Tokens of the longest right response, the end and a tool's included, none merged."""

    def question(self, draw: random.Random) -> str:
        """A random question: a string of `shortest` to `longest` symbols."""
        length = draw.randint(self.config.shortest, self.config.longest)
        return "".join(draw.choice(self.symbols) for _ in range(length))

    @property
    def longest_question(self) -> int:
        return self.config.longest

    def score(self, question: str, response: str) -> float:
        """How right a response is, 0 to 1; neither text holds its closing mark."""
        return similarity(response, self.solution(question))

    def tool(self, prompt: Sequence[int], response: Sequence[int]) -> list[int] | None:
        """The tool's answer if the response so far ends in a call, else None."""
        return None

    @property
    def vocabulary(self) -> int:
        return len(self.pieces)

    @property
    def longest_prompt(self) -> int:
        return self.longest_question + 1

    def prompts(self, count: int, seed: str) -> list[tuple[int, ...]]:
        """`count` prompts as token ids, each ending in `ASK`; the same for the same seed."""
        draw = random.Random(seed)
        return [tuple(self.tokenize(self.question(draw) + "=")) for _ in range(count)]

    def answer(self, prompt: Sequence[int]) -> list[int]:
        return self.tokenize(self.solution(self.text(prompt)[:-1]) + ".")

    def demonstration(self, prompt: Sequence[int]) -> tuple[list[int], list[bool]]:
        """A whole right response, and which of its tokens are the policy's and not the tool's."""
        answer = self.answer(prompt)
        return answer, [True] * len(answer)

    def grade(self, prompt: Sequence[int], response: Sequence[int]) -> float:
        """How right a response is, 0 to 1; `response` is all after the prompt, with `END`."""
        return self.score(self.text(prompt)[:-1], self.text(response).removesuffix("."))

    def reward(self, prompt: Sequence[int], response: Sequence[int]) -> float:
        """The grade, or where there is a pass mark: 1 from that grade on, else 0."""
        grade = self.grade(prompt, response)
        return float(grade >= self.config.pass_mark) if self.config.pass_mark else grade

    def text(self, tokens: Sequence[int]) -> str:
        return "".join(self.pieces[token] for token in tokens)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, the longest piece first: not always those it was sampled as."""
        return [self._ids[piece] for piece in self._piece.findall(text)]


def similarity(given: str, right: str) -> float:
    """How alike texts are: half by symbols (multiset Dice), half by place; `right` is not empty."""
    shared = sum((Counter(given) & Counter(right)).values())
    placed = sum(a == b for a, b in zip(given, right, strict=False))
    overlap = 2 * shared / (len(given) + len(right))
    return 0.5 * overlap + 0.5 * placed / max(len(given), len(right))


def task_of(config: TrainerConfig) -> Task:
    """The task that a run is about. Errors: `TrainerError` for settings that it cannot have."""
    from rltrace.trainer.tasks import KINDS  # they are made from the class above

    task = KINDS[config.task](config)
    if config.max_response < task.longest_response:
        raise TrainerError(
            f"max_response must be at least {task.longest_response}, or not every answer "
            f"to {task.name} can end, not {config.max_response}"
        )
    return task
