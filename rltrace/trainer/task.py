"""What is learned: a rule on short strings whose answer a program can verify, with graded reward.

Under the rule "sort" the prompt "bca=" asks for "abc" and the end token. Lengths vary from prompt
to prompt and the policy has to learn when to end, so response lengths vary as they do at scale.
"""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

END = 0
"""The token that ends a response."""
ASK = 1
"""The token that ends a prompt, shown as "="."""
FIRST_SYMBOL = 2

RULES: dict[str, Callable[[Sequence[int]], list[int]]] = {
    "sort": sorted,
    "reverse": lambda symbols: list(reversed(symbols)),
    "copy": list,
}


@dataclass(frozen=True)
class Task:
    """A rule, and the strings that it is asked about."""

    rule: str
    symbols: int
    shortest: int
    longest: int

    @property
    def vocabulary(self) -> int:
        """Number of token ids: the two marks and the symbols."""
        return FIRST_SYMBOL + self.symbols

    def prompts(self, count: int, seed: str) -> list[tuple[int, ...]]:
        """`count` prompts as token ids, the same for the same seed."""
        draw = random.Random(seed)
        last = self.vocabulary - 1
        return [
            (*(draw.randint(FIRST_SYMBOL, last) for _ in range(length)), ASK)
            for length in (draw.randint(self.shortest, self.longest) for _ in range(count))
        ]

    def answer(self, prompt: Sequence[int]) -> list[int]:
        """The right response, without the end token."""
        return RULES[self.rule](prompt[:-1])

    def reward(self, prompt: Sequence[int], response: Sequence[int]) -> float:
        """How right a response is, 0 to 1: half for the right symbols, half for their places.

        Symbols count by multiset overlap (Dice), places by position over the longer of the two
        strings. Too long and too short both cost, so a policy learns to end.
        """
        given = list(response[:-1] if response[-1] == END else response)
        right = self.answer(prompt)
        shared = sum((Counter(given) & Counter(right)).values())
        placed = sum(a == b for a, b in zip(given, right, strict=False))
        overlap = 2 * shared / (len(given) + len(right))
        return 0.5 * overlap + 0.5 * placed / max(len(given), len(right))

    def text(self, tokens: Sequence[int]) -> str:
        """Token ids as people read them: "bca=", "abc."."""
        marks = {END: ".", ASK: "="}
        return "".join(marks.get(t) or string.ascii_lowercase[t - FIRST_SYMBOL] for t in tokens)
