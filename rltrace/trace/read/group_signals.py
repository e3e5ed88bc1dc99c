"""Which groups carry a signal: rewards that differ within the samples of a prompt.

Where none differs, a group-relative advantage (GRPO, RLOO) is zero for all of them. A reward is
looked at component by component: components that cancel out (x and 1 - x) are not found out.

A process may state how its job combines components: the fact `reward_weights`, a weight by the name
of a component, as of a weighted sum in which nothing is added for a component that did not apply to
a sample. So a component of weight 0 makes no signal, and a sample that another component judged has
0 of this one. What nobody states a weight of is compared between the samples that have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rltrace.trace.vocabulary import Outcome

if TYPE_CHECKING:
    import pyarrow as pa

    from rltrace.trace.read.processes import TracedProcess

WEIGHTS = "reward_weights"
"""The fact, and the table of it: `component` (its name), `weight`."""

GIVEN_NAN = f"""(outcome = {int(Outcome.OK)} and case when isnan(value)
    then value::bit <> '{"1" * 64}'::bit else false end)"""
"""In SQL over `raw_rewards`: whether a verdict that did not fail is a NaN that the job gave."""


def reward_weights(processes: Iterable[TracedProcess]) -> dict[str, float]:
    """The weight of each component; one about which processes disagree has none."""
    found: dict[str, set[float]] = {}
    for process in processes:
        for component, weight in (process.facts.get(WEIGHTS) or {}).items():
            name = component.encode("utf-8", "replace").decode()  # as names are read
            found.setdefault(name, set()).add(float(weight))
    return {name: weights.pop() for name, weights in found.items() if len(weights) == 1}


def weights_table(weights: dict[str, float]) -> pa.Table:
    """The weights as a table."""
    import pyarrow as pa

    components = pa.array(list(weights), pa.string())
    numbers = pa.array(list(weights.values()), pa.float64())
    return pa.table({"component": components, "weight": numbers})


_WEIGHTS = f"""weights AS (
    SELECT n.id AS component, weight FROM {WEIGHTS} w JOIN names n ON n.text = w.component)"""

SIGNALS = f"""
CREATE OR REPLACE TABLE signals AS
WITH {_WEIGHTS},
judged AS (
    SELECT "group", component, trajectory, CASE WHEN NOT isnan(value) THEN value END AS value,
           {GIVEN_NAN} AS no_number, isnan(value) AND NOT {GIVEN_NAN} AS unseen, weight
    FROM raw_rewards r JOIN sample_lives USING (trajectory) LEFT JOIN weights USING (component)
    WHERE r.start_ns > 0 AND (NOT isnan(value) OR outcome <= 0) AND is_generated
    AND "group" <> -1),
weighed AS (
    SELECT "group", count(DISTINCT trajectory) AS of_group
    FROM judged WHERE weight IS NOT NULL GROUP BY "group"),
compared AS (
    SELECT "group", component, any_value(weight) AS weight, min(trajectory) < max(trajectory)
           AS several, count(DISTINCT trajectory) FILTER (weight IS NOT NULL) AS of_component,
           min(value) AS least, max(value) AS most, bool_or(no_number) AS no_number,
           bool_or(unseen) AS unseen
    FROM judged GROUP BY "group", component)
SELECT "group", CASE WHEN bool_or(
           CASE WHEN no_number OR weight = 0 THEN false
                WHEN weight IS NOT NULL AND of_component < of_group
                THEN greatest(most, 0) > least(least, 0)
                ELSE most > least END) THEN true WHEN NOT bool_or(unseen) THEN false END AS signal
FROM compared LEFT JOIN weighed USING ("group")
WHERE CASE WHEN weight IS NULL THEN several ELSE of_group > 1 END
GROUP BY "group"
"""
"""Table: groups with at least two verdicts, and whether they carry a signal, where components have
these weights. A component that is NaN for one of them, because the job gave that, carries none: the
advantage of all is NaN, too. NULL: verdicts that are known are equal, and nobody recorded others
(one that failed is none)."""

SAMPLE_REWARDS = f"""
CREATE OR REPLACE VIEW sample_rewards AS
WITH {_WEIGHTS}
SELECT trajectory, sum(CASE WHEN weight = 0 THEN 0 ELSE value * coalesce(weight, 1) END) AS reward
FROM (SELECT trajectory, component, avg(value) AS value FROM raw_rewards
      WHERE start_ns > 0 AND trajectory <> -1 AND NOT isnan(value)
      GROUP BY trajectory, component)
LEFT JOIN weights USING (component) GROUP BY trajectory
"""
"""View: the reward of each sample, the sum of its components, each times its weight (1 where nobody
states any)."""
