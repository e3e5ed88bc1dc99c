-- Where all generated tokens went: useful, trained on without a signal, dropped and why, never used.
-- Useful: trained on at any lag, in a group whose rewards differ where advantages are relative to it;
-- a group of fewer than two verdicts has a signal that is not known then. Response tokens of the whole
-- run, each sample once.
WITH sampled AS (
    SELECT trajectory, max("group") AS "group", max(response_tokens) AS tokens,
           arg_max(finish, end_ns) AS finish
    FROM grouped_trajectories WHERE trajectory IS NOT NULL GROUP BY trajectory
    UNION ALL
    SELECT NULL, "group", response_tokens, finish FROM grouped_trajectories WHERE trajectory IS NULL),
fated AS (
    SELECT trajectory, max(tokens) AS tokens, true AS met,
           CASE WHEN bool_or(fate = 'trained') THEN 'trained' ELSE arg_min(fate, time_ns) END AS fate
    FROM uses WHERE trajectory IS NOT NULL GROUP BY trajectory
    UNION ALL
    SELECT NULL, tokens, true, fate FROM uses WHERE trajectory IS NULL),
reasons AS (
    SELECT coalesce(f.tokens, g.tokens) AS tokens,
           CASE WHEN fate = 'trained' AND signal THEN 'useful'
                WHEN fate = 'trained' AND NOT signal THEN 'trained, no signal in its group'
                WHEN fate = 'trained' THEN 'trained, signal not known'
                WHEN met THEN coalesce(fate, 'unknown fate')
                WHEN finish IN ('abort', 'timeout', 'error') THEN 'never used (' || finish || ')'
                ELSE 'never used' END AS reason
    FROM sampled g FULL JOIN fated f ON f.trajectory = g.trajectory
    LEFT JOIN (SELECT "group", signal AS told FROM signals) s ON s."group" = g."group"
    CROSS JOIN (SELECT CASE WHEN NOT of_group THEN true END AS always FROM advantage_baseline)
    CROSS JOIN LATERAL (SELECT coalesce(told, always) AS signal))
SELECT reason, count(*) AS samples, sum(coalesce(tokens, 0)) AS tokens,
       sum(tokens) / sum(sum(tokens)) OVER () AS share_of_tokens
FROM reasons
GROUP BY reason
ORDER BY reason <> 'useful', tokens DESC, reason
