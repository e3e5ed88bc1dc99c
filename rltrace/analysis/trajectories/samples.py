"""The SQL of samples that were generated, met and trained on.

It asks `sample_lives` (`rltrace.trace.read.trajectory_lifecycle`). Samples that the learner met
without an id, or all by ids that nobody generated, are taken to be among those not met by theirs.
"""

from __future__ import annotations

from rltrace.trace.vocabulary import Fate

GENERATED_SAMPLES = """with generated as (
        select trajectory, "group", first_version, last_version, response_tokens, finish, end_ns
        from sample_lives where is_generated)"""
"""Opens a query with `generated`: a row for each of them, unknown as NULL."""

DECIDED_SAMPLES = f"""with joined as (
        select coalesce(time_ns, end_ns) as decided_ns, is_met as met, fate, finish,
               coalesce(greatest(tokens, response_tokens),
                   case when is_met or end_ns >= 0 then usual_tokens end, 0) as tokens,
               case when fate = {int(Fate.TRAINED)}
                    then greatest(response_tokens - tokens, 0) else 0 end as masked,
               coalesce(tokens, response_tokens) is null as uncounted,
               is_met and not is_generated and (trajectory is null or not exists (
                   select 1 from sample_lives where is_met and is_generated)) as unnamed
        from sample_lives),
    decided as (
        select *, case when met then 1.0 else greatest(0.0, 1.0 -
            coalesce((select count(*) from joined where unnamed), 0)
            / (select count(*) from joined where not met)) end as weight
        from joined)"""
"""Opens a query with `decided`: a row for each sample that was generated or met, with the tokens
that were generated; `masked` of them are not in the loss of a sample that was trained on. `weight`
is the part of those not met by their id that was not met at all."""

TRAINED_SAMPLES = f"""with trained as (
        select trajectory, time_ns, version,
               coalesce(tokens, response_tokens, usual_tokens) as tokens,
               coalesce(tokens, response_tokens) is null as uncounted,
               first_version, last_version, "group", end_ns, token_ids, logprobs
        from sample_lives where fate = {int(Fate.TRAINED)})"""
"""Opens a query with `trained`: one row for each sample that was trained on; `end_ns` is when its
generation had ended, `token_ids` and `logprobs` are whether the server's own were kept."""

TRAINED_USES = f"""with several as (
        select trajectory, version, min(time_ns) as time_ns, max(nullif(tokens, -1)) as tokens
        from told_uses where time_ns > 0 and fate = {int(Fate.TRAINED)}
             and trajectory in (select trajectory from sample_lives where again)
        group by trajectory, version),
    trained as (
        select trajectory, time_ns, version,
               coalesce(tokens, response_tokens, usual_tokens)::bigint as tokens,
               first_version, last_version
        from sample_lives where fate = {int(Fate.TRAINED)} and not again
        union all
        select trajectory, u.time_ns, u.version,
               coalesce(u.tokens, l.response_tokens, l.usual_tokens)::bigint,
               l.first_version, l.last_version
        from several u join sample_lives l using (trajectory))"""
"""The same with one row for each policy version that a sample was trained on under: a generation
that serves several updates (PPO's epochs, TRL's `num_iterations`) grows older with each of them."""
