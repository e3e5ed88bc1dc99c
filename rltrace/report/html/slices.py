"""The slices of the timeline: everything that lasted, with the shortest merged where there are too
many for a page."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

Ints = NDArray[np.int64]

MOST = 120_000
"""A page of so many slices is about a megabyte and draws within a frame or two."""

SPAN, TRAJECTORY, VERDICT, UPDATE = range(4)
KINDS = ("spans", "trajectories", "verdicts", "weight updates")
"""What a slice is a row of."""

_FINEST = 1 << 13  # parts of the run within which short slices are merged at first
_COARSEST = 1 << 8  # from these on lanes do not keep them apart


@dataclass(frozen=True)
class Slices:
    """A row each; -1: unknown. `count` slices stand behind one, `busy_ns` is how long they lasted
    together; `name` is the id of the first one's. `merged_below_ns`: shorter ones were merged with
    neighbours of the same stage (0: none were); `of` is how many there were before."""

    process: Ints
    kind: Ints
    lane: Ints
    name: Ints
    stage: Ints
    start_ns: Ints
    end_ns: Ints
    step: Ints
    version: Ints
    tokens: Ints
    count: Ints
    busy_ns: Ints
    is_open: Ints
    merged_below_ns: int
    of: int

    def __len__(self) -> int:
        return len(self.start_ns)


def read_slices(run: Run, since_ns: int, until_ns: int, most: int = MOST) -> Slices:
    """All slices of `run` that last between two moments (Unix ns), or on into that time or out of
    it, merged until at most `most` are left. One that never ended lasts until the second moment."""
    rows = _ROWS.format(since=since_ns, until=until_ns)
    of = int(run.ask(f"select count(*) from ({rows})")[0][0])
    if of <= most:
        return _read(run, _WHOLE.format(rows=rows), 0, of)
    length, parts = max(1, until_ns - since_ns), _FINEST
    while True:
        width = max(1, length // parts)
        lane = "lane" if parts > _COARSEST else "0::bigint"
        query = _MERGED.format(rows=rows, width=width, since=since_ns, lane=lane)
        left = int(run.ask(f"select count(*) from ({query})")[0][0])
        if left <= most or parts == 1:
            return _read(run, query, width, of)
        parts //= 2


_UNTIL = "case when end_ns < 0 then {until} else greatest(start_ns, end_ns) end"

_ROWS = f"""
    select *, (recorded_ns < 0)::int as is_open from (
        select process, {SPAN} as kind, lane, name, stage, start_ns, {_UNTIL} as end_ns,
               end_ns as recorded_ns, step, version, tokens
        from raw_spans where stage <> {int(Stage.STEP)}
        union all
        select process, {TRAJECTORY}, 0, -1, {int(Stage.ROLLOUT)}, start_ns, {_UNTIL},
               end_ns, -1, first_version, response_tokens from raw_trajectories
        union all
        select process, {VERDICT}, 0, component, {int(Stage.REWARD)}, start_ns, {_UNTIL},
               end_ns, -1, -1, -1 from raw_rewards
        union all
        select process, {UPDATE}, 0, -1, {int(Stage.SYNC)}, start_ns, {_UNTIL},
               end_ns, -1, version, -1 from raw_syncs)
    where start_ns > 0 and start_ns <= {{until}} and end_ns >= {{since}}"""

_WHOLE = "select *, 1 as count, end_ns - start_ns as busy_ns from ({rows})"

_MERGED = """
    with slices as ({rows})
    select process, kind, lane, name, stage, start_ns, end_ns, step, version, tokens, is_open,
           1 as count, end_ns - start_ns as busy_ns
    from slices where end_ns - start_ns >= {width}
    union all
    select process, kind, {lane}, min(name), stage, min(start_ns), max(end_ns),
           case when min(step) = max(step) then min(step) else -1 end,
           case when min(version) = max(version) then min(version) else -1 end,
           case when min(tokens) >= 0 then sum(tokens) else -1 end, max(is_open), count(*),
           sum(end_ns - start_ns)
    from slices where end_ns - start_ns < {width}
    group by process, kind, {lane}, stage, (start_ns - {since}) // {width}"""


def _read(run: Run, query: str, width: int, of: int) -> Slices:
    found: dict[str, Any] = run.ask_columns(query)
    names = [one.name for one in fields(Slices) if one.name in found]
    columns = {name: np.asarray(found[name]).astype(np.int64) for name in names}
    return Slices(**columns, merged_below_ns=width, of=of)
