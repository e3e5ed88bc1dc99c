-- The 30 trajectories that took longest, in seconds: first token, tools, tokens, how it ended.
WITH used AS (SELECT trajectory, min(step) AS step FROM uses GROUP BY trajectory)
SELECT t.trajectory, u.step AS used_in_step, (t.end_ns - t.start_ns) / 1e9 AS seconds,
       (first_token_ns - t.start_ns) / 1e9 AS first_token_s, env_ns / 1e9 AS env_s,
       prompt_tokens, response_tokens,
       response_tokens * 1e9 / nullif(t.end_ns - t.start_ns, 0) AS tokens_per_s,
       turns, preemptions, finish, role, rank, make_timestamp_ns(t.start_ns) AS began_utc
FROM trajectories t LEFT JOIN used u ON u.trajectory = t.trajectory
WHERE t.end_ns IS NOT NULL
ORDER BY seconds DESC, t.start_ns, t.trajectory
LIMIT 30
