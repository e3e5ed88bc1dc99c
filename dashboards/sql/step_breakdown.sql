-- Where each step went: its seconds, and those in which each stage ran in any process.
-- Stages overlap, so they may add up to more; in nothing_seen_s no stage ran. A step that was done
-- twice (after a restart) counts both times.
WITH windows AS (SELECT step, sum(seconds) AS seconds FROM steps GROUP BY step),
running AS (
    SELECT k.step, greatest(s.start_ns, k.start_ns) AS a, least(s.end_ns, k.end_ns) AS b
    FROM spans s JOIN steps k ON s.start_ns < k.end_ns AND s.end_ns > k.start_ns
    WHERE s.stage <> 'step'),
reached AS (
    SELECT *, max(b) OVER (PARTITION BY step ORDER BY a, b
                           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM running),
seen AS (
    SELECT step, sum(greatest(0, b - greatest(a, coalesce(before, a)))) / 1e9 AS seconds
    FROM reached GROUP BY step)
SELECT step, any_value(w.seconds) AS seconds,
       any_value(w.seconds - coalesce(v.seconds, 0)) AS nothing_seen_s,
       sum(t.seconds) FILTER (stage = 'rollout') AS rollout_s,
       sum(t.seconds) FILTER (stage = 'env') AS env_s,
       sum(t.seconds) FILTER (stage = 'reward') AS reward_s,
       sum(t.seconds) FILTER (stage = 'reference') AS reference_s,
       sum(t.seconds) FILTER (stage = 'logprob') AS logprob_s,
       sum(t.seconds) FILTER (stage = 'value') AS value_s,
       sum(t.seconds) FILTER (stage = 'train') AS train_s,
       sum(t.seconds) FILTER (stage = 'sync') AS sync_s,
       sum(t.seconds) FILTER (stage = 'switch') AS switch_s,
       sum(t.seconds) FILTER (stage = 'wait') AS wait_s,
       sum(t.seconds) FILTER (stage IN ('data', 'checkpoint', 'eval', 'other')) AS other_s
FROM windows w LEFT JOIN stages t USING (step) LEFT JOIN seen v USING (step)
GROUP BY step
ORDER BY step
