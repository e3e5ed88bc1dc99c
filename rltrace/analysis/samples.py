"""The SQL that follows a sample from its generation to its fate at the learner.

A sample is counted once however often its id was recorded: generation and verdicts may be seen in
several processes, and a learner may go over a batch several times. Rows without an id (-1) cannot
be told apart and each count as a sample; of samples that the learner met without an id it is taken
that they are among those that were generated and that it met by no id.
"""

from __future__ import annotations

from rltrace.analysis.no_number import GIVEN_NAN
from rltrace.trace.vocabulary import Fate

_COLUMNS = """
    generated as (
        select trajectory, coalesce(max(nullif("group", -1)), -1) as "group",
               min(nullif(first_version, -1)) as first_version,
               max(nullif(last_version, -1)) as last_version,
               max(nullif(response_tokens, -1)) as response_tokens, max(finish) as finish,
               max(end_ns) as end_ns
        from raw_grouped_trajectories where start_ns > 0 and trajectory <> -1 group by trajectory
        union all
        select null, "group", nullif(first_version, -1), nullif(last_version, -1),
               nullif(response_tokens, -1), finish, end_ns
        from raw_grouped_trajectories where start_ns > 0 and trajectory = -1),
    fates as (
        select trajectory, min(time_ns) as time_ns,
               coalesce(arg_min(version, time_ns) filter (fate = 0), -1) as version,
               min(nullif(fate, -1)) as fate, max(nullif(tokens, -1)) as tokens
        from raw_uses where time_ns > 0 and trajectory <> -1 group by trajectory
        union all
        select null, time_ns, version, nullif(fate, -1), nullif(tokens, -1)
        from raw_uses where time_ns > 0 and trajectory = -1)"""
# `min(fate)`: a sample that was trained on (0) at any time was trained on.

SAMPLES = f"with {_COLUMNS}"
"""Opens a query with `generated` (a row for each sample that was generated) and `fates` (a row for
each that the learner met; what is unknown is NULL, but a version is -1)."""

DECIDED_SAMPLES = f"""{SAMPLES},
    joined as (
        select coalesce(f.time_ns, g.end_ns) as decided_ns, f.time_ns is not null as met,
               f.fate, g.finish, coalesce(f.tokens, g.response_tokens, 0) as tokens,
               f.time_ns is not null and f.trajectory is null as unnamed
        from generated g full join fates f on g.trajectory = f.trajectory),
    decided as (
        select *, case when met then 1.0 else greatest(0.0, 1.0 -
            (select count(*) from joined where unnamed)
            / (select count(*) from joined where not met)) end as weight
        from joined)"""
"""Opens a query with `decided`: one row for each sample that was generated or met, at the moment
that decided its fate. The `weight` of those that were met by no id is the part of them that, as far
as is known, was not met at all."""

TRAINED_SAMPLES = f"""{SAMPLES},
    trained as (
        select trajectory, f.time_ns, f.version, coalesce(f.tokens, g.response_tokens) as tokens,
               g.first_version, g.last_version, g."group"
        from fates f left join generated g using (trajectory)
        where f.fate = {int(Fate.TRAINED)})"""
"""Opens a query with `trained`: one row for each sample that was trained on."""

SIGNALS = f"""
    signals as (
        select "group", bool_or(differs) as signal
        from (select "group", component,
                     max(value) > min(value) and not bool_or(isnan(value)) as differs,
                     count(distinct trajectory) as samples
              from raw_rewards r join generated g using (trajectory)
              where r.start_ns > 0 and (not isnan(value) or {GIVEN_NAN}) and "group" <> -1
              group by "group", component)
        where samples > 1 group by "group")"""
"""Another table: groups with at least two verdicts, and whether any component of the reward differs
between them; one that is NaN (`no_number`) does not. Where none does, a group-relative advantage
(GRPO, RLOO) is zero for all, or no number."""
