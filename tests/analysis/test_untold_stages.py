"""Which stages a share of the samples does not tell."""

from __future__ import annotations

import pytest

from rltrace.analysis.untold_stages import untold_stages, why_untold
from rltrace.testing.inside.trace import Stage

ENV, ROLLOUT, REWARD, TRAIN = Stage.ENV, Stage.ROLLOUT, Stage.REWARD, Stage.TRAIN
TRAINER, ENGINE, TOOLS = 0, 1, 2


@pytest.mark.parametrize(
    ("spans", "with_rows", "untold"),
    [
        ({(TRAIN, TRAINER), (ROLLOUT, ENGINE)}, {ROLLOUT}, set()),
        ({(TRAIN, TRAINER)}, {ROLLOUT}, {ROLLOUT}),
        ({(TRAIN, TRAINER), (ROLLOUT, ENGINE)}, {ROLLOUT, REWARD}, {REWARD}),
        ({(TRAIN, TRAINER)}, {ROLLOUT, REWARD}, {ROLLOUT, REWARD}),
        ({(TRAIN, TRAINER), (ROLLOUT, ENGINE)}, set(), set()),
        # Whether all samples of the engine are in their tools takes all of them.
        ({(ROLLOUT, ENGINE), (ENV, ENGINE)}, {ROLLOUT}, {ROLLOUT}),
        ({(ROLLOUT, ENGINE), (ENV, TOOLS)}, {ROLLOUT}, set()),
    ],
)
def test_a_stage_is_told_whole_by_its_spans(
    spans: set[tuple[Stage, int]], with_rows: set[Stage], untold: set[Stage]
) -> None:
    assert untold_stages(spans, with_rows) == untold


def test_the_reason_names_the_stages() -> None:
    some = "only 10 % of the samples were recorded (--sample)"
    assert (
        why_untold({REWARD, ROLLOUT}, some)
        == f"the time of rollout and reward takes all samples, and {some}"
    )
    assert why_untold(set(), some) == ""
