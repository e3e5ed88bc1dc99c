"""What is published about tolerable lag, by objective: a label where a run has no figures of it."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.trace.texts import packaged_toml


@dataclass(frozen=True)
class Prior:
    """Systems with this objective run at lags up to `held` without remark, and harm is reported
    from `doubtful` on; both in learner steps. `assumed`: the run did not say its objective."""

    objective: str
    held: int
    doubtful: int
    source: str
    assumed: bool


def prior_for(objective: str) -> Prior:
    """The prior of an objective by any of its names. Plain PPO's, which tolerates least, where the
    objective is unknown (an empty string, or a name that the table does not have)."""
    table = packaged_toml("analysis/data/lag_priors.toml")["prior"]
    found = [entry for entry in table if objective.lower() in entry["match"]]
    entry = (found or table)[0]
    return Prior(
        entry["objective"], entry["held"], entry["doubtful"], entry["source"], assumed=not found
    )
