"""Less seen is never surer: runs of known truth, whole and with less of them recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.synthetic.truth import known_job
from benchmarks.synthetic.workload import Workload
from rltrace.testing.inside.analysis import LIKELY, Ranking
from tests.analysis.less_seen import (
    NEAR,
    UNHURRIED,
    Change,
    changed,
    columns,
    verdict,
    without_column,
    without_half,
    without_process,
    without_table,
    workloads,
)


def changes() -> Iterator[tuple[str, Change]]:
    """Ways to have recorded less: without a column, a table or half of it, or a process."""
    for table, column in columns():
        yield f"{table}.{column}", without_column(table, column)
    for table in ("trajectories", "rewards", "uses", "syncs", "samples"):
        yield table, without_table(table)
        yield f"half of {table}", without_half(table)
    for role in ("rollout", "reward", "learner"):
        yield f"a {role} process", without_process(role)


def surer(whole: Ranking, less: Ranking) -> str:
    """What is said more surely of the run of which less is known; empty: nothing is."""
    binding = {wall.name for wall in whole.binding}
    nothing = {w.name for w in less.walls if w.cost.share == 0 and w.confidence == LIKELY}
    if lost := {w.name for w in whole.binding if w.cost.share > NEAR} & nothing:
        return f"{lost} cost nothing"
    if less.balanced and not whole.balanced:
        return "balanced"
    if less.first is None or less.confidence != LIKELY:
        return ""
    if less.first.name not in binding:
        return f"{less.first.name} is likely"
    return (
        "" if whole.confidence == LIKELY else f"{less.first.name} is likely, not {whole.confidence}"
    )


@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_less_seen_is_never_surer(count: int) -> None:
    @settings(UNHURRIED, max_examples=count)
    @given(workloads(), st.data())
    def look(load: Workload, data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder, "run")
            known_job(run, **vars(load))
            whole, ways = verdict(run), dict(changes())
            drawn = st.sets(st.sampled_from(sorted(ways)), min_size=5, max_size=5)
            for nth, name in enumerate(data.draw(drawn)):
                less = verdict(changed(run, Path(folder, str(nth)), ways[name]))
                assert not surer(whole, less), name

    look()
