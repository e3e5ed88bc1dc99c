"""Whether others keep the cores of a job busy, and what one more thread costs then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rltrace.analysis.whatif.other_work import one_more
from rltrace.analysis.whatif.parts import parts_of
from rltrace.testing.inside.trace import Run
from tests.analysis.whatif.played import of

Made = Callable[..., tuple[Run, Any]]


@pytest.mark.parametrize(
    ("threads", "factor"),
    [
        (-1, 1.0),  # nobody read them
        (1, 1.0),  # the job's own
        (2, 1.0),
        (4, 5 / 4),  # the job's, and three of others: one more makes five take turns
        (9, 10 / 9),
    ],
)
def test_more_threads_than_cores_take_turns(synthetic: Made, threads: int, factor: float) -> None:
    run, _ = synthetic(
        placement="colocated", gpus=0, cores_per_node=2, runnable_threads=threads, gap_s=0.0,
        switch_s=0.0, reward_s=0.01,
    )  # fmt: skip
    found = one_more(run, parts_of(run))
    assert found == pytest.approx(factor, rel=0.02)
    assert of(run).one_more == found


def test_several_nodes_do_not_tell(synthetic: Made) -> None:
    run, _ = synthetic(gpus=0, nodes=2, cores_per_node=2, runnable_threads=9)
    assert one_more(run, parts_of(run)) == 1
