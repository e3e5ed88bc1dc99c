"""The advice on a plan: what it warns of is what the plan says."""

from __future__ import annotations

import re

from rltrace.analysis.plan.advice import advise
from rltrace.testing.inside.analysis import plan
from tests.analysis.plan.made import spec


def test_the_longest_of_a_prompt_is_cut_at_the_cap_as_that_of_a_batch_is() -> None:
    lengths = {"mean_tokens": 1000, "cap_tokens": 5500, "variation": 20}
    advice = advise(plan(spec(top={"staleness": "strict"}, lengths=lengths)))
    (risk,) = (one for one in advice.risks if one.startswith("the longest of a batch"))
    batch, group = map(float, re.findall(r"[0-9]+\.[0-9]", risk))
    assert 1 < group < batch <= 5.5
