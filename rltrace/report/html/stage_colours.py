"""Which class of the style sheet gives a stage its colour."""

from __future__ import annotations

from collections.abc import Iterable

from rltrace.report.html.markup import Html
from rltrace.report.html.parts import legend

UNATTRIBUTED = "unattributed"
COLOURED = (
    "rollout", "env", "reward", "reference", "logprob", "value", "train", "sync", "switch",
    "wait", "data", "checkpoint", "eval", "other", UNATTRIBUTED,
)  # fmt: skip
"""All that have a colour, in the order in which they are stacked. The style sheet and the timeline
know them by these names."""


def css(stage: str) -> str:
    """The class of a stage; of one that a later version added, that of `other`."""
    return f"s-{stage if stage in COLOURED else 'other'}"


def stage_legend(stages: Iterable[str]) -> Html:
    """A legend of these stages in the order of stacking."""
    shown = set(stages)
    return legend([(css(stage), stage) for stage in COLOURED if stage in shown])
