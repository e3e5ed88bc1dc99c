"""Two turns and a tool: "bca=" asks for what a hidden table holds for "bca".

The response "bca?ed=ed." is a query, the call "?", the tool's answer "ed=" and the policy's own.
"""

from __future__ import annotations

import itertools
import math
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from statistics import NormalDist

from rltrace.trainer.config import TrainerConfig, TrainerError
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


# --- Strings rewritten by a rule: "bca=" is "abc." sorted, "acb." reversed and "bca." copied.

RULES: dict[str, Callable[[str], str]] = {
    "sort": lambda question: "".join(sorted(question)),
    "reverse": lambda question: question[::-1],
    "copy": lambda question: question,
}


class Rewriting(Task):
    """One rule, on strings of `shortest` to `longest` symbols."""

    def solution(self, question: str) -> str:
        return RULES[self.name](question)

    @property
    def longest_response(self) -> int:
        return self.config.longest + 1


# --- Response lengths with a chosen tail: "c=" asks for "c" as many times as c stands for.


class Repeat(Task):
    """Every symbol has its number of repetitions, growing from symbol to symbol."""

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
    """A lognormal distribution as `rungs` equally likely whole numbers, rising, each at least 1.

    A rung is the mean of its share of the distribution, so their mean is `mean` but for rounding;
    `variation` is the standard deviation over the mean.
    """
    sigma = math.sqrt(math.log1p(variation**2))
    normal = NormalDist()
    cuts = (-math.inf, *normal.quantiles(rungs), math.inf)
    below = [normal.cdf(cut - sigma) for cut in cuts]  # share of the sum that lies below each cut
    return [max(1, round(mean * rungs * (high - low))) for low, high in itertools.pairwise(below)]


# --- A verifier that is a program of its own: "17=" asks for a sum such as "9+8.", a shell adds
# it.

VERIFIER_LIMIT_SECONDS = 10.0


class Expression(Task):
    """Numbers to be written as a sum; each is that of `shortest` to `longest` terms of at most
    `symbols`."""

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
        """One is split off: "17" is "16+1"."""
        return f"{int(question) - 1}+1"

    @property
    def longest_response(self) -> int:
        """A number, "+1" and the end token."""
        return self.longest_question + 3

    def score(self, question: str, response: str) -> float:
        """How near the sum comes, 1 - difference / larger; half of it where nothing is added.

        0 for what the shell cannot add. Errors: `subprocess.TimeoutExpired` where it gives no
        verdict in `VERIFIER_LIMIT_SECONDS`, `subprocess.CalledProcessError` where it was killed.
        """
        done = subprocess.run(
            [self.shell, "-c", 'echo "$(($1))"', "sh", response],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=VERIFIER_LIMIT_SECONDS,
            check=False,
        )
        if done.returncode > 0:
            return 0.0
        done.check_returncode()
        asked, value = int(question), int(done.stdout)
        nearness = max(0.0, 1 - abs(value - asked) / max(value, asked))
        return nearness if "+" in response.lstrip("+") else 0.5 * nearness
