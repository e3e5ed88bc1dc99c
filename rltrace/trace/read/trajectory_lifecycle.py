"""SQL that follows samples to the learner, and weight updates.

A sample is counted once however often its id was recorded: generation and verdicts may be seen in
several processes, and a learner may go over a batch several times. Rows without an id (-1) each
count as a sample.

A loop that says versions with its weight updates only says none before the first of them. What
ended by then is of the version before it, which is known where updates are counted one by one,
something was trained on before the first (else it may load weights that no update made), and by
then no sample had a version and no use another. A sample whose first token is of the version before
the first update, and that ended by the time this update was done, is of it to its last token, where
samples of its process say that of theirs later on.
"""

from __future__ import annotations

from rltrace.trace.vocabulary import Fate, Phase, Stage

UNTOLD = """create or replace table untold as with updates as (
        select min(start_ns) as begin_ns, arg_min(end_ns, start_ns) as done_ns,
               min(version) - 1 as before,
               min(version) >= 1 and arg_min(version, start_ns) = min(version)
               and max(version)::bigint - min(version) + 1 = count(distinct version)
               and (min(version) = 1 or count(distinct version) > 1) as one_by_one
        from raw_syncs where start_ns > 0 and version >= 0)
    select begin_ns, case when one_by_one
        and exists (select 1 from raw_uses
                    where time_ns > 0 and time_ns < begin_ns and fate = 0)
        and not exists (select 1 from raw_uses where time_ns > 0 and time_ns < begin_ns
                        and version <> -1 and version <> before)
        and not exists (select 1 from raw_trajectories
                        where start_ns > 0 and start_ns < begin_ns and first_version <> -1)
        then before end as version,
        case when one_by_one then before end as before, done_ns
    from updates"""
UNTOLD_UNKNOWN = """create or replace table untold as select null::bigint as begin_ns,
    null::int as version, null::int as before, null::bigint as done_ns"""
"""Table: what is of the version before the first update, and where nobody can tell."""

TOLD_USES = """
    create or replace view told_uses as
    select u.* replace (
        case when u.version = -1 and time_ns < begin_ns
             then coalesce(untold.version, -1) else u.version end as version)
    from raw_uses u, untold"""

LIVES = (
    """create or replace table lives as
    with told_trajectories as (
        select t.* replace (
            case when t.first_version = -1 and end_ns between start_ns and begin_ns
                 then coalesce(untold.version, -1) else t.first_version end as first_version,
            case when t.last_version = -1 and t.first_version = untold.before
                      and end_ns between start_ns and done_ns
                      and t.process in (select process from raw_trajectories
                                        where start_ns > 0 and last_version <> -1)
                      then t.first_version
                 when t.last_version = -1 and end_ns between start_ns and begin_ns
                 then coalesce(untold.version, -1) else t.last_version end as last_version)
        from raw_grouped_trajectories t, untold),
    generated as (
        select trajectory, coalesce(max(nullif("group", -1)), -1) as "group",
               min(nullif(first_version, -1)) as first_version,
               max(nullif(last_version, -1)) as last_version,
               max(nullif(response_tokens, -1)) as response_tokens, max(finish) as finish,
               max(end_ns) as end_ns, min(nullif(token_ids, -1)) as token_ids,
               min(nullif(logprobs, -1)) as logprobs, arg_max(process, first_version) as engine
        from told_trajectories where start_ns > 0 and trajectory <> -1 group by trajectory
        union all
        select null, "group", nullif(first_version, -1), nullif(last_version, -1),
               nullif(response_tokens, -1), finish, end_ns, nullif(token_ids, -1),
               nullif(logprobs, -1), process as engine
        from told_trajectories where start_ns > 0 and trajectory = -1),
    fates as (
        select trajectory, min(time_ns) as time_ns,
               coalesce(arg_min(version, time_ns) filter (fate = 0), -1) as version,
               min(time_ns) filter (fate <> 1) as used_ns,
               min(nullif(fate, -1)) as fate, max(nullif(tokens, -1)) as tokens,
               count(*) > 1 as again
        from told_uses where time_ns > 0 and trajectory <> -1 group by trajectory
        union all
        select null, time_ns, version,
               case when fate <> 1 then time_ns end, nullif(fate, -1), nullif(tokens, -1), false
        from told_uses where time_ns > 0 and trajectory = -1)
    select coalesce(g.trajectory, f.trajectory) as trajectory, g.end_ns is not null as is_generated,
           "group", first_version, last_version, response_tokens, finish, end_ns, token_ids,
           logprobs, engine, time_ns is not null as is_met, time_ns, used_ns, version, fate,
           tokens, again
    from generated g full join fates f on g.trajectory = f.trajectory""",
    """create or replace table usual as
    select avg(coalesce(tokens, response_tokens)) filter (fate = 0 or not is_met) as usual_tokens
    from lives""",
    "create or replace view sample_lives as select * from lives, usual",
)
VERDICTS = """
create or replace table sample_verdicts as
select trajectory, sum(end_ns - start_ns) filter (end_ns > start_ns)::bigint as verdict_ns,
       min(start_ns) as judged_ns, bool_or(outcome > 0) as unjudged
from raw_rewards where start_ns > 0 and end_ns >= start_ns and trajectory <> -1
group by trajectory"""
"""Of each judged sample: how long verdicts took (NULL: unknown), when they began, if one failed."""

# `min(fate)`: a sample that was trained on (0) at any time was trained on.
"""Tables and views: `sample_lives` has a row for each sample that was generated (`is_generated`) or
that the learner met (`is_met`): what is unknown is NULL, but a `version` is -1; `trajectory` is
NULL where it had no id, and such a sample is never both. `engine` is the process that generated it.
`again`: the learner met it several times. `used_ns` is when it first did so and did not find it
stale (1). `told_uses` are the uses with their versions as far as they are known. `usual_tokens`
stands for tokens that are not known: the mean of those that are, without what was dropped."""


SYNC_ROWS = """
create or replace table sync_rows as
with numbered as (
    select process, role, transport, version, bytes, start_ns, end_ns, stall_ns,
           case when version >= 0 then version + (job << 32) else -start_ns end as number
    from raw_syncs asof join job_begins on start_ns >= since_ns
    where start_ns > 0 and end_ns >= start_ns)
select *, end_ns - greatest(start_ns, coalesce(
           max(end_ns) over (partition by number
               order by start_ns rows between unbounded preceding and 1 preceding),
           start_ns)) as added_ns
from numbered"""
"""Participants of weight updates: each update has a `number` (rows of an unknown version are each
an update, and so is a version again once the job began again); `added_ns` is how much a row
prolongs the union of those before it."""

PHASE_UNIONS = f"""
    with sharing as (
        select number, process, start_ns, end_ns {{participants}}
        and end_ns >= {{since}} and start_ns < {{until}}),
    spans as (
        select process, phase, start_ns, end_ns, end_ns - (end_ns - start_ns) // 10 as late
        from raw_spans where start_ns > 0 and end_ns > start_ns and stage = {int(Stage.SYNC)}
        and phase between 0 and {max(Phase)} and end_ns >= {{since}} and start_ns < {{until}}
        and late >= {{since}} and late < {{until}}),
    own as (
        select s.*, p.number, p.start_ns as since, p.end_ns as until
        from spans s asof left join sharing p on s.process = p.process and s.late <= p.end_ns),
    found as (
        select phase, start_ns, end_ns, number, since, until from own
        where number is not null and since <= late
        union all
        select s.phase, s.start_ns, s.end_ns, p.number, p.start_ns, p.end_ns
        from (select * from own where number is null or since > late) s
        asof join sharing p on s.late <= p.end_ns where p.start_ns <= s.late),
    pieces as materialized (
        select number, phase, greatest(start_ns, since) as start_ns, least(end_ns, until) as end_ns
        from found),
    -- Pieces that have a moment in common, as most do, are one; others are put in their order.
    whole as (
        select number, phase, min(start_ns) as start_ns, max(end_ns) as end_ns,
               max(start_ns) <= min(end_ns) as is_one
        from pieces group by all),
    begun as (
        select number, phase, start_ns, max(end_ns) over (partition by number, phase) as last_ns,
               max(end_ns) over (partition by number, phase order by start_ns
                   rows between unbounded preceding and 1 preceding) as before_ns
        from pieces semi join (from whole where not is_one) using (number, phase)
        qualify before_ns is null or start_ns > before_ns)
    select number, phase::bigint, start_ns, end_ns from whole where is_one union all
    select number, phase, start_ns, coalesce(
        lead(before_ns) over (partition by number, phase order by start_ns), last_ns) from begun
"""
"""The union of each phase of each update of the `participants`, of spans that were nearly over in a
part of the time: `number`, `phase`, start and end."""


# --- how queries for samples begin. Those that the learner met without an id, or all by ids that
# nobody generated, are taken to be among those not met by theirs.

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


# --- an evaluation's generation
# While a job evaluates, its engines do nothing else, and do not know whose their requests are. So
# what begins within a span of the stage `eval` is the evaluation's: spans of generation, tools and
# rewards are of that stage, samples and their rewards are in no figure. That is not so where a
# sample that began meanwhile met the learner, as generation went on beside the evaluation: of the
# same process for what this process did itself, of any process for what others did. Where no sample
# met the learner by its id nothing shows what others did, and it is training's.

EVALUATIONS = "evaluations"
"""Table: `start_ns` and `end_ns` of each evaluation in which something was generated, and its
`owner`, whose work in that time is its own: a process, or -1 for all."""

_EVALUATING = f"recorded_spans WHERE stage = {int(Stage.EVAL)} AND start_ns > 0"
ANY_EVALUATION = f"SELECT 1 FROM {_EVALUATING} LIMIT 1"
_OWNERS = "unnest(CASE WHEN EXISTS (FROM met) THEN [process, -1] ELSE [process] END) AS owner"
MAKE_EVALUATIONS = f"""
CREATE OR REPLACE TABLE {EVALUATIONS} AS
WITH met AS (SELECT DISTINCT trajectory FROM recorded_uses WHERE time_ns > 0 AND trajectory <> -1),
evaluating AS (
    SELECT {_OWNERS}, start_ns, CASE WHEN end_ns < 0 THEN {(1 << 63) - 1} ELSE end_ns END AS end_ns
    FROM {_EVALUATING}),
apart AS (
    SELECT *, start_ns > max(end_ns) OVER (PARTITION BY owner ORDER BY start_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) IS NOT FALSE AS begins
    FROM evaluating),
numbered AS (
    SELECT *, count(*) FILTER (begins) OVER (PARTITION BY owner ORDER BY start_ns
        ROWS UNBOUNDED PRECEDING) AS number FROM apart),
whole AS (
    SELECT owner, min(start_ns) AS start_ns, max(end_ns) AS end_ns FROM numbered
    GROUP BY owner, number),
generated AS (
    SELECT {_OWNERS}, start_ns, trajectory IN (FROM met) AS is_met
    FROM recorded_trajectories WHERE start_ns > 0
    UNION ALL
    SELECT {_OWNERS}, start_ns, false FROM recorded_spans
    WHERE start_ns > 0 AND stage = {int(Stage.ROLLOUT)})
SELECT w.owner, w.start_ns, w.end_ns FROM generated g
ASOF JOIN whole w ON g.owner = w.owner AND g.start_ns >= w.start_ns
WHERE g.start_ns < w.end_ns GROUP BY ALL HAVING NOT bool_or(is_met)
"""

_OF = (int(Stage.ROLLOUT), int(Stage.ENV), int(Stage.REWARD))
_JOINED = f"""FROM ({{rows}}) t
    ASOF LEFT JOIN {EVALUATIONS} own ON own.owner = t.process AND t.start_ns >= own.start_ns
    ASOF LEFT JOIN (FROM {EVALUATIONS} WHERE owner = -1) whole ON t.start_ns >= whole.start_ns"""
_WITHIN = "coalesce(t.start_ns < own.end_ns, false) OR coalesce(t.start_ns < whole.end_ns, false)"
OF_EVALUATIONS = ("spans", "trajectories", "rewards")


def rows_of_training(table: str, rows: str) -> str:
    """A query of the `rows` of a table as they are of training."""
    joined = _JOINED.format(rows=rows)
    if table == "spans":
        stage = f"CASE WHEN stage IN {_OF} AND ({_WITHIN}) THEN {int(Stage.EVAL)} ELSE stage END"
        return f"SELECT t.* REPLACE ({stage}::TINYINT AS stage) {joined}"
    if table == "trajectories":
        return f"SELECT t.* {joined} WHERE NOT ({_WITHIN})"
    samples = "FROM recorded_trajectories WHERE start_ns > 0 AND trajectory <> -1"
    evaluated = f"SELECT trajectory {_JOINED.format(rows=samples)} WHERE {_WITHIN}"
    others = f"(SELECT trajectory {samples} AND trajectory NOT IN ({evaluated}))"
    return f"""SELECT t.* {joined}
        WHERE trajectory IN {others} OR NOT ({_WITHIN}) AND trajectory NOT IN ({evaluated})"""
