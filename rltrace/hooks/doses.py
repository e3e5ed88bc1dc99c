"""The design of a probe: by how much which stage is delayed in which step.

A dose is a *dilation*: of every second that a stage works in a dosed step, so much more is slept.
Steps come in blocks of `BLOCK`. In every block each stage is dosed in exactly one step, which one
is drawn for each stage by itself; the first block is left alone (warm-up). So the mean dose of each
stage is `budget`, and since no second of a step's critical path can be stretched by more than its
stage is, the job as a whole cannot get slower by more than that.

Every process draws the same doses from seed, step and stage: they need to agree on the step only.
"""

from __future__ import annotations

from _blake2 import blake2b  # hashlib would cost every process 2 ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

BLOCK = 4
"""Steps of a block. Rarer, larger doses tell more for the same budget: the variance of a dose of
mean b, given in one of n steps, is (n - 1) b². But a large dose may bring a stage to bind that did
not, and what is asked is what binds without it."""

LARGEST_BUDGET = 0.125
"""Of the job's time: a dose is then half as long again as the work."""

DEFAULT_BUDGET = 0.05

STAGES = (
    *("rollout", "env", "reward", "reference", "logprob", "value", "train", "sync", "switch"),
    *("data", "checkpoint", "eval"),
)
"""The stages that can be delayed: those that are work."""

DEFAULT_STAGES = STAGES[:9]


class Design:
    """Which stages are delayed, the budget (share of the job's time) and the seed."""

    __slots__ = ("budget", "seed", "stages")

    def __init__(self, stages: Iterable[str], budget: float, seed: int) -> None:
        """Errors: `ValueError` for a stage that cannot be delayed, a budget out of range."""
        self.stages = tuple(dict.fromkeys(stages)) or DEFAULT_STAGES
        for stage in self.stages:
            if stage not in STAGES:
                raise ValueError(f"{stage!r} is none of the stages that can be delayed: {_LISTED}")
        if not 0 < budget <= LARGEST_BUDGET:
            most = f"{100 * LARGEST_BUDGET:g} %"
            raise ValueError(f"a budget is more than 0 % and at most {most}, not {100 * budget:g}")
        self.budget = budget
        self.seed = seed

    @property
    def dose(self) -> float:
        """The dilation in a dosed step: seconds slept for a second of work."""
        return self.budget * BLOCK

    def doses(self, place: int) -> dict[str, float]:
        """The dilation of each stage that is dosed in a step; `place` counts steps from 0, where
        the job began."""
        block, within = divmod(place, BLOCK)
        if block < 1:
            return {}
        return {s: self.dose for s in self.stages if self._drawn(s, block) == within}

    def _drawn(self, stage: str, block: int) -> int:
        key = f"{self.seed}/{stage}/{block}".encode()
        return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") % BLOCK

    def text(self) -> str:
        """The design as the value of an environment variable; `Design.of` reads it."""
        return f"{self.budget!r};{self.seed};{','.join(self.stages)}"

    def settings(self) -> dict[str, Any]:
        """The design as a run's settings state it."""
        design = {"stages": list(self.stages), "budget": self.budget, "seed": self.seed}
        return {**design, "dose": self.dose, "block": BLOCK}

    @classmethod
    def of(cls, text: str) -> Design:
        """Errors: `ValueError`."""
        budget, seed, stages = text.split(";")
        return cls(stages.split(","), float(budget), int(seed))


_LISTED = ", ".join(STAGES)
