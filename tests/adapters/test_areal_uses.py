"""AReaL: what became of samples has the number of the step that is open when it is committed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.adapters.areal import samples


class Use:
    """A row; another one is made as its step is set, as by the executor's thread."""

    def __init__(self, meanwhile: Use | None = None) -> None:
        self.meanwhile, self.step = meanwhile, -1

    def set(self, step: int) -> None:
        self.step = step
        if self.meanwhile is not None:
            samples._uses.append(self.meanwhile)


@pytest.mark.parametrize("others", [0, 3])
def test_a_sample_that_is_given_up_meanwhile_is_of_the_next_step(others: int) -> None:
    late = Use()
    first = [Use(late), *(Use() for _ in range(others))]
    samples._uses.extend(first)
    recorder: Any = SimpleNamespace(step=5)
    samples.uses_are_of(recorder)
    assert [use.step for use in first] == [5] * len(first)
    assert late.step == -1
    recorder.step = 6
    samples.uses_are_of(recorder)
    assert late.step == 6
    assert not samples._uses
