"""The time in which generation may have stood still for weights, where nobody recorded it.

In a loop of the user's own that records an update where weights are sent, and not where they are
taken, spans of rollout stay open whether actors go on meanwhile or wait. Then both are possible.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.framework import framework_of
from rltrace.analysis.intervals import of_spans, union
from rltrace.analysis.pieces import Pieces
from rltrace.analysis.roles import MOVES, Role
from rltrace.trace.vocabulary import Stage, SyncRole

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_ROLLOUT, _SYNC = 1 << Stage.ROLLOUT, 1 << Stage.SYNC


def stopped_share(run: Run, pieces: Pieces) -> float | None:
    """The part of the time of generation in which weights were being sent and nobody said what the
    actors did meanwhile; None where somebody did, or an adapter would have."""
    trains = np.isin(pieces.process, pieces.process[pieces.stage == Stage.TRAIN])
    if framework_of(run)[0] or (np.isin(pieces.stage, MOVES) & ~trains).any():
        return None
    taken = f"select count(*) from raw_syncs where start_ns > 0 and role <> {int(SyncRole.SOURCE)}"
    if run.sql(taken).fetchall()[0][0]:
        return None
    sends = pieces.take(pieces.stage == Stage.SYNC)
    made = pieces.take(pieces.stage == Stage.ROLLOUT)
    if not len(sends) or not len(made):
        return None
    none = np.zeros_like(sends.start_ns)
    sent = union(of_spans(none, sends.start_ns, sends.end_ns, none))
    moments = np.stack([sent.start, sent.end], axis=1).ravel()
    before = np.cumsum(sent.end - sent.start)
    so_far = np.stack([before - (sent.end - sent.start), before], axis=1).ravel()
    within = np.interp(made.end_ns, moments, so_far) - np.interp(made.start_ns, moments, so_far)
    return float(within.sum()) / float((made.end_ns - made.start_ns).sum())


def stopped_role(role: Role, share: float, sent_s: float) -> Role:
    """What an actor does if for that part of its generation it waited for weights, and never
    generates in the `sent_s` seconds a step in which they are sent."""
    if not role.does((Stage.ROLLOUT,)):
        return role
    set_s = role.set_s.copy()
    for mask in range(len(set_s)):
        if mask & _ROLLOUT:
            set_s[mask & ~_ROLLOUT] += share * role.set_s[mask]
            set_s[mask] -= share * role.set_s[mask]
    set_s[_SYNC] += sent_s / role.part
    rows = role.rows
    if rows is not None and rows.stage is Stage.ROLLOUT:
        rows = replace(rows, work_s=rows.work_s * (1 - share))
    return replace(role, set_s=set_s, rows=rows)


def stopped_latency_s(latency_s: dict[Stage, float], share: float) -> dict[Stage, float]:
    """How long a sample is worked on by each stage, likewise."""
    whole_s = latency_s.get(Stage.ROLLOUT, 0.0)
    return latency_s | {Stage.ROLLOUT: whole_s * (1 - share), Stage.SYNC: whole_s * share}
