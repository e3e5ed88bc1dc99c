"""Where a figure that TRL logs is not what its name says, and why (docs/trl.md)."""

from __future__ import annotations

from rltrace.hooks.figures import OwnFigure

_ASYNC = ("async",)
_SYNC = ("colocated", "disaggregated")

FIGURES = (
    OwnFigure(
        ("step_time",),
        ("step",),
        "generation and rewards are in it; the optimizer's step, logging and checkpoints are not",
        placements=_SYNC,
        since_last=True,
    ),
    OwnFigure(
        ("perf/step_s",),
        ("step",),
        "from the end of one update to that of the next, the wait for samples included",
        placements=_ASYNC,
    ),
    OwnFigure(
        ("perf/fwd_bwd_s", "perf/optimizer_s"),
        ("train",),
        "clipping of gradients is in neither",
        placements=_ASYNC,
    ),
    OwnFigure(
        ("perf/weight_sync_s",),
        ("sync",),
        "the pause of the server and the wait for all ranks are in it",
        placements=_ASYNC,
    ),
    OwnFigure(
        ("weight_sync_time_s",),
        ("sync",),
        "the pause of the server and the wait for all ranks are in it",
        placements=_ASYNC,
    ),
    OwnFigure(
        ("rollout/duration_s",),
        ("rollout",),
        "one conversation in the mean, its tools included: many run at once",
        placements=_ASYNC,
    ),
    OwnFigure(
        ("perf/rollout_wait_s",),
        ("wait",),
        "the first rank's wait for the queue only",
        placements=_ASYNC,
    ),
    OwnFigure((), ("sync",), "no size is logged", name="bytes of a weight update", unit="B"),
)
