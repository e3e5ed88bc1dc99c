"""Made runs whose wall is known, and the same runs with less recorded.

What a wall truly costs is asked of the generator, not of a trace: the same job is played again with
the stages of that wall at no length.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from pyarrow import ipc

import rltrace
from benchmarks.synthetic.timeline import play
from benchmarks.synthetic.workload import PLACEMENTS, Workload
from rltrace.testing.inside.analysis import Ranking, RunAnalysis, rank
from rltrace.trace.schema import TABLES

NEAR = 0.05
"""Walls whose costs differ by less bind together."""

UNHURRIED = settings(
    deadline=None, derandomize=True, suppress_health_check=[*HealthCheck], database=None
)


def verdict(run: Path) -> Ranking:
    return rank(RunAnalysis(rltrace.open_run(run)))


GENERATION = "generation"
_WITHOUT: dict[str, dict[str, Any]] = {
    GENERATION: {"first_token_s": 0.0, "seconds_per_token": 0.0, "env_s": 0.0},
    "env/reward": {"reward_s": 0.0},
    "training": {"reference_s": 0.0, "logprob_s": 0.0, "train_s": 0.0},
    "weight sync": {"sync_s": 0.0, "switch_s": 0.0},
}


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Jobs of all placements, in which each wall may be the one."""

    def one_of(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    return Workload(
        seed=draw(st.integers(0, 10**6)),
        placement=one_of(*PLACEMENTS),
        gpus=one_of(0, 8),
        steps=one_of(10, 14, 20),
        prompts=one_of(4, 8),
        group=one_of(4, 8),
        median_tokens=one_of(100.0, 400.0),
        sigma=one_of(0.3, 0.8, 1.2),
        seconds_per_token=one_of(0.0005, 0.002, 0.006),
        reward_s=one_of(0.05, 0.5, 3.0),
        reward_streamed=draw(st.booleans()),
        reference_s=one_of(0.1, 0.6, 2.0),
        logprob_s=one_of(0.1, 0.5),
        train_s=one_of(0.5, 2.5, 10.0),
        sync_s=one_of(0.1, 0.4, 4.0),
        switch_s=one_of(0.05, 0.3, 2.0),
        zero_groups=one_of(0.0, 0.1, 0.6),
    )


def true_costs(load: Workload) -> dict[str, float]:
    """Share of the goodput that each wall takes, by name. Tail and decoding share generation: a
    batch has a slot for each of its samples, and drains until its longest ends."""
    as_it_is, batches = _steady(load)
    costs = {name: 1 - _steady(replace(load, **knobs))[0] / as_it_is
             for name, knobs in _WITHOUT.items()}  # fmt: skip
    generation = costs.pop(GENERATION)
    lasted = [batch.end - batch.start for batch in batches]
    full = sum(float(each.mean()) for each in lasted) / sum(float(each.max()) for each in lasted)
    costs |= {"rollout": full * generation, "long tail": (1 - full) * generation}
    failed = [(np.repeat(batch.value.reshape(load.prompts, -1).max(axis=1), load.group) <= 0)
              for batch in batches]  # fmt: skip
    tokens = sum(int(batch.tokens.sum()) for batch in batches)
    lost = sum(int(b.tokens[where].sum()) for b, where in zip(batches, failed, strict=True))
    return costs | {"sparse reward": lost / tokens}


def _steady(load: Workload) -> tuple[float, list[Any]]:
    """Mean length of a steady step, ns, and the batches."""
    played = play(load)
    windows = [plan.window for plan in played.steps if not plan.warmup]
    return float(np.mean([end - start for start, end in windows])), played.batches


# --- the same with less recorded

Change = Callable[[str, str, pa.Table], pa.Table | None]
"""Table, process and rows of a segment to what is left of them."""


def without_column(table: str, column: str) -> Change:
    """As if nobody had stored the column: it is all ones."""

    def change(name: str, who: str, rows: pa.Table) -> pa.Table:
        if name != table:
            return rows
        place = rows.column_names.index(column)
        field = rows.schema.field(place)
        ones = np.full(len(rows), -1, f"i{field.type.bit_width // 8}")
        unknown = pa.array(ones.view(field.type.to_pandas_dtype()), field.type)
        return rows.set_column(place, field, unknown)

    return change


def without_table(table: str) -> Change:
    """As if no hook of that table were there."""
    return lambda name, who, rows: None if name == table else rows


def without_half(table: str) -> Change:
    """As if every second row of that table were lost."""
    return lambda name, who, rows: rows.take(np.arange(0, len(rows), 2)) if name == table else rows


def without_process(role: str) -> Change:
    """As if nothing of the first process of that role had been kept."""

    def change(name: str, who: str, rows: pa.Table) -> pa.Table | None:
        return None if who == f"{role}-0" else rows

    return change


def changed(run: Path, to: Path, change: Change) -> Path:
    """The run with less in it, at `to`."""
    shutil.copytree(run, to)
    told = [json.loads(path.read_text()) for path in to.glob("process/*")]
    whose = {one["who"]: f"{one['role']}-{one['rank']}" for one in told}
    for path in to.glob("*/*.arrows"):
        rows = ipc.open_stream(path.read_bytes()).read_all()
        who = path.name.rsplit(".", 2)[0]
        left = change(path.parent.name, whose.get(who, who), rows)
        if left is None:
            path.unlink()
        elif left is not rows:
            with ipc.new_stream(path, rows.schema) as segment:
                segment.write_table(left)
    return to


NEEDED = {"spans": {"start_ns", "end_ns", "name", "stage", "lane"}, "samples": {"time_ns"}}
"""Columns without which there are no spans at all; those of the other tables are their times."""


def columns() -> Iterator[tuple[str, str]]:
    """All columns that may be unknown."""
    for table in ("spans", "trajectories", "rewards", "uses", "syncs"):
        needed = NEEDED.get(table, {TABLES[table].columns[0].name})
        yield from ((table, c.name) for c in TABLES[table].columns if c.name not in needed)
