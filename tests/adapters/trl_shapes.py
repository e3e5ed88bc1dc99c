"""Things of TRL's shape, for readers that are tried without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rltrace
from rltrace.testing.inside.adapters import rollouts
from rltrace.testing.inside.hooks import Hook, Observer, wrap

END = 9
"""The token after which a sample is complete."""


def hooked(function: Any, stage: Any = None, **readers: Any) -> Any:
    """A function with a hook on it."""
    return wrap(function, Observer(Hook("trl:function", stage, **readers)))


def hook_loop(loop: Any) -> None:
    """Hooks what samples are made by, as the adapter does."""
    loop._generate_one = hooked(loop._generate_one, before=rollouts.begins, after=rollouts.ends)
    loop._generate_one_turn = hooked(
        loop._generate_one_turn, "rollout", before=rollouts.asks, after=rollouts.turn_ends
    )
    loop._score_group = hooked(
        loop._score_group, "reward", before=rollouts.judging, after=rollouts.judged
    )


def rows(run_path: Path, query: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = rltrace.open_run(run_path).sql(query).fetchall()
    return found


def no_problems(run_path: Path) -> bool:
    return [p for p in rltrace.open_run(run_path).problems if p["what"] != "no-gpu"] == []


def message(role: str) -> dict[str, str]:
    return {"role": role, "content": ""}


class Array(list[int]):
    """As NumPy's: with a sum, the first of the largest, and its bytes."""

    def sum(self) -> int:
        return sum(self)

    def argmax(self) -> int:
        return self.index(max(self))

    def tobytes(self) -> bytes:
        return b"".join(number.to_bytes(8, "little") for number in self)


class Taken:
    """A sample as TRL pickles it: fields and no room for others."""

    __slots__ = ("completion", "completion_mask", "input_ids", "metrics", "model_version")

    def __init__(
        self, ids: list[int], mask: list[int], version: int = 1, completion: Any = None, **of: float
    ) -> None:
        self.input_ids, self.completion_mask, self.model_version = ids, mask, version
        self.completion = completion
        self.metrics = {f"rewards/{name}": value for name, value in of.items()}
