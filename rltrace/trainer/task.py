"""What is learned: questions whose answers a program can verify and grade.

The prompt "bca=" of the task "sort" asks for "abc."; "." ends a response.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import shutil
import string
import subprocess
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import NormalDist
from subprocess import DEVNULL, PIPE

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


RULES: dict[str, Callable[[str], str]] = {
    "sort": lambda question: "".join(sorted(question)),
    "reverse": lambda question: question[::-1],
    "copy": lambda question: question,
}


class Rewriting(Task):
    """One rule, on strings of `shortest` to `longest` symbols: "bca=" is "abc." sorted."""

    def solution(self, question: str) -> str:
        return RULES[self.name](question)

    @property
    def longest_response(self) -> int:
        return self.config.longest + 1


class Repeat(Task):
    """Response lengths with a tail: "c=" asks for many "c"."""

    def __init__(self, config: TrainerConfig) -> None:
        super().__init__(config)
        counts = lognormal_ladder(config.symbols, config.mean_length, config.length_tail)
        self.counts = dict(zip(self.symbols, counts, strict=True))

    def question(self, draw: random.Random) -> str:
        return draw.choice(self.symbols)

    @property
    def longest_question(self) -> int:
        return 1

    def solution(self, question: str) -> str:
        return question * self.counts[question]

    @property
    def longest_response(self) -> int:
        return self.counts[self.symbols[-1]] + 1


def lognormal_ladder(rungs: int, mean: float, variation: float) -> list[int]:
    """A lognormal distribution as `rungs` equally likely whole numbers, rising, at least 1: the
    means of its shares. Their mean is about `mean`; `variation` is deviation over mean."""
    sigma = math.sqrt(math.log1p(variation**2))
    normal = NormalDist()
    cuts = (-math.inf, *normal.quantiles(rungs), math.inf)
    below = [normal.cdf(cut - sigma) for cut in cuts]  # share of the sum that lies below each cut
    return [max(1, round(mean * rungs * (high - low))) for low, high in itertools.pairwise(below)]


VERIFIER_LIMIT_SECONDS = 10.0


class Expression(Task):
    """Numbers to be written as a sum of `shortest` to `longest` terms of at most `symbols`: "17="
    asks for one, and the verifier is a program."""

    def __init__(self, config: TrainerConfig) -> None:
        super().__init__(config, "0123456789", marks="+")
        if config.symbols > 9:
            raise TrainerError(f"symbols must be at most 9, the digits, not {config.symbols}")
        shell = shutil.which("sh")
        if shell is None:
            raise TrainerError("the task expression needs sh, and there is none on the PATH")
        self.shell = shell

    def question(self, draw: random.Random) -> str:
        terms = draw.randint(self.config.shortest, self.config.longest)
        return str(sum(draw.randint(1, self.config.symbols) for _ in range(terms)))

    @property
    def longest_question(self) -> int:
        return len(str(self.config.longest * self.config.symbols))

    def solution(self, question: str) -> str:
        return f"{int(question) - 1}+1"

    @property
    def longest_response(self) -> int:
        return self.longest_question + 3

    def score(self, question: str, response: str) -> float:
        """How near the sum comes, 1 - difference / larger; half where nothing is added; 0 for no
        sum. Errors: `subprocess.TimeoutExpired`, `subprocess.CalledProcessError` (killed)."""
        command = [self.shell, "-c", 'echo "$(($1))"', "sh", response]
        done = subprocess.run(
            command, stdout=PIPE, stderr=DEVNULL, timeout=VERIFIER_LIMIT_SECONDS, check=False
        )
        if done.returncode > 0:
            return 0.0
        done.check_returncode()
        asked, value = int(question), int(done.stdout)
        nearness = max(0.0, 1 - abs(value - asked) / max(value, asked))
        return nearness if "+" in response.lstrip("+") else 0.5 * nearness


VALUE_LENGTH = 2


class Lookup(Task):
    """Two turns and a tool: "bca?ed=ed." is a query, the call, the tool's answer, the policy's own.
    A table holds a value for every string: too many to learn them, so it must be asked."""

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


KINDS: dict[str, Callable[[TrainerConfig], Task]] = {
    **dict.fromkeys(RULES, Rewriting),
    "repeat": Repeat,
    "expression": Expression,
    "lookup": Lookup,
}


def task_of(config: TrainerConfig) -> Task:
    """The task that a run is about. Errors: `TrainerError` for settings that it cannot have."""
    task = KINDS[config.task](config)
    if config.max_response < task.longest_response:
        raise TrainerError(
            f"max_response must be at least {task.longest_response}, or not every answer "
            f"to {task.name} can end, not {config.max_response}"
        )
    return task
