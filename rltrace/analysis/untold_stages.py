"""Stages whose times cannot be known from a share of the samples (`wrap --sample`, in 0.1).

Spans are recorded whole, of every sample, so what they tell is known as ever. A stage that has rows
of samples and no span is not: others were generated, or judged, in the time that these leave free.
Nor is generation in a process that has spans of its samples' tools, too: whether all of its samples
were in their tools then takes all of them.
"""

from __future__ import annotations

from collections.abc import Collection

from rltrace.trace.run import Run
from rltrace.trace.sampled import only_some
from rltrace.trace.vocabulary import Stage, word

ROWS_OF = {Stage.ROLLOUT: "trajectories", Stage.REWARD: "rewards"}
"""The tables of samples whose rows are the work of a stage, where it has no spans."""


def untold_stages(
    spans: Collection[tuple[Stage, int]], with_rows: Collection[Stage]
) -> frozenset[Stage]:
    """The stages of a sampled run that are not told whole: `spans` are the pairs of a stage and a
    process that has spans of it, `with_rows` those of `ROWS_OF` that have rows of samples."""
    seen = {stage for stage, _ in spans}
    found = {stage for stage in with_rows if stage not in seen}
    tools, generating = (
        {one for stage, one in spans if stage is which} for which in (Stage.ENV, Stage.ROLLOUT)
    )
    if tools & generating and Stage.ROLLOUT in with_rows:
        found.add(Stage.ROLLOUT)
    return frozenset(found)


def untold_stages_of(run: Run, spans: Collection[tuple[Stage, int]]) -> frozenset[Stage]:
    """The same of a recorded run; none where all samples have rows."""
    if not only_some(run.meta):
        return frozenset()
    return untold_stages(spans, [s for s, table in ROWS_OF.items() if run.has_rows(table)])


def why_untold(stages: Collection[Stage], some: str) -> str:
    """Why exposed times are not known, where stages are not told whole; `some` is why not all
    samples have rows. Empty where all are."""
    if not stages:
        return ""
    names = " and ".join(word(stage) for stage in sorted(stages))
    return f"the time of {names} takes all samples, and {some}"
