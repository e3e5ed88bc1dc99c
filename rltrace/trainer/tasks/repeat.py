"""Response lengths with a tail: "c=" asks for many "c"."""

from __future__ import annotations

import itertools
import math
import random
from statistics import NormalDist

from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.task import Task


class Repeat(Task):
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
