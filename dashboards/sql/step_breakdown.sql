-- Where each step went: its seconds, and those in which each stage ran in any process.
-- A moment is of the innermost stage of its lane, as in the report: generation within a step of
-- training is rollout, not train, and what encloses other stages (eval, other) has what they leave.
-- Stages of several lanes overlap, so they may add up to more than the step, and none is longer
-- than it; in nothing_seen_s no stage ran. A step done twice (after a restart) counts both times.
WITH windows AS (SELECT step, sum(seconds) AS seconds FROM steps GROUP BY step),
ended AS (SELECT * FROM spans WHERE stage <> 'step' AND end_ns > start_ns),
moments AS (
    SELECT process, lane, start_ns AS ns, 1 AS turn, end_ns, stage FROM ended UNION ALL
    SELECT process, lane, end_ns, -1, NULL, NULL FROM ended),
deep AS (  -- what has the same depth as a span that ended is of the last one that began there
    SELECT *, sum(turn) OVER l AS depth, row_number() OVER l AS place, lead(ns) OVER l AS until
    FROM moments
    WINDOW l AS (PARTITION BY process, lane ORDER BY ns, turn, end_ns DESC
                 ROWS UNBOUNDED PRECEDING)),
pieces AS (
    SELECT ns, until, depth, last_value(stage IGNORE NULLS) OVER (
        PARTITION BY process, lane, depth ORDER BY place) AS stage
    FROM deep QUALIFY depth > 0 AND until > ns),
named AS (
    SELECT ns, until, 'any' AS stage FROM pieces UNION ALL
    SELECT ns, until, CASE WHEN stage IN ('data', 'checkpoint', 'eval') THEN 'other' ELSE stage END
    FROM pieces),
running AS (
    SELECT k.step, stage, greatest(ns, k.start_ns) AS a, least(until, k.end_ns) AS b
    FROM named n JOIN steps k ON n.ns < k.end_ns AND n.until > k.start_ns),
reached AS (
    SELECT *, max(b) OVER (PARTITION BY step, stage ORDER BY a, b
                           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM running),
ran AS (
    SELECT step, stage, sum(greatest(0, b - greatest(a, coalesce(before, a)))) / 1e9 AS seconds
    FROM reached GROUP BY step, stage)
SELECT step, any_value(w.seconds) AS seconds,
       any_value(w.seconds) - coalesce(sum(r.seconds) FILTER (stage = 'any'), 0) AS nothing_seen_s,
       sum(r.seconds) FILTER (stage = 'rollout') AS rollout_s,
       sum(r.seconds) FILTER (stage = 'env') AS env_s,
       sum(r.seconds) FILTER (stage = 'reward') AS reward_s,
       sum(r.seconds) FILTER (stage = 'reference') AS reference_s,
       sum(r.seconds) FILTER (stage = 'logprob') AS logprob_s,
       sum(r.seconds) FILTER (stage = 'value') AS value_s,
       sum(r.seconds) FILTER (stage = 'train') AS train_s,
       sum(r.seconds) FILTER (stage = 'sync') AS sync_s,
       sum(r.seconds) FILTER (stage = 'switch') AS switch_s,
       sum(r.seconds) FILTER (stage = 'wait') AS wait_s,
       sum(r.seconds) FILTER (stage = 'other') AS other_s
FROM windows w LEFT JOIN ran r USING (step)
GROUP BY step
ORDER BY step
