"""What was kept of the samples that were trained on: token ids and log-probs of the server.

Log-probs that generation did not keep are lost where they are made anew under later weights, as the
ratio then hides the lag. A pass over samples under the very weights that sampled them, before any
update (TRL's with `num_iterations` or `steps_per_generation` above what one update takes), hides
none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.analysis.samples import TRAINED_SAMPLES
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run


_RENEWED = f"""
        passes as (
            select start_ns, version from raw_spans
            where start_ns > 0 and stage = {int(Stage.LOGPROB)}),
        renewed as (
            select distinct t.trajectory
            from (select * from trained where end_ns is not null and logprobs = 0) t
            asof join passes p on t.time_ns >= p.start_ns
            where p.version = t.first_version and p.start_ns >= t.end_ns)"""
"""Samples whose log-probs were made anew under the weights that sampled them. Nothing says which
samples a pass was over: the last before the first use has the latest weights that the sample's own
can have had, so others can only make it count as lost."""


@dataclass(frozen=True)
class Captured:
    """Trajectories that were trained on: all, of how many each is known, and of these how many kept
    the server's own. `lost_tokens` of `tokens` have no ratio that could be trusted: log-probs lost
    and made anew under later weights, or token ids lost; of `unsure_tokens` the log-probs are lost
    and the lag is unknown.
    """

    trajectories: int
    ids_known: int
    ids_kept: int
    logprobs_known: int
    logprobs_kept: int
    tokens: int
    lost_tokens: int
    unsure_tokens: int


def captured(run: Run) -> Captured:
    """Counts them over the whole run."""
    row = run.ask(f"""
        {TRAINED_SAMPLES},
        {_RENEWED},
        judged as (
            select coalesce(tokens, 0) as tokens, token_ids as ids, logprobs as probs,
                   coalesce(ids = 0, false) or coalesce(
                       probs = 0 and version >= 0 and version > first_version
                       and trajectory not in (select trajectory from renewed), false) as lost,
                   coalesce(probs = 0, false)
                       and (version < 0 or first_version is null) as unsure
            from trained)
        select count(*), count(ids), count(*) filter (ids = 1), count(probs),
               count(*) filter (probs = 1), coalesce(sum(tokens), 0)::bigint,
               coalesce(sum(tokens) filter (lost), 0)::bigint,
               coalesce(sum(tokens) filter (unsure and not lost), 0)::bigint
        from judged
    """)[0]
    return Captured(*(int(value) for value in row))
