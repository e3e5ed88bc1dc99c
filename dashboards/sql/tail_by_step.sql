-- What each step's last trajectories cost: seconds between the end of 95 % of them and of all.
-- Trajectories that ended within the step; `longest` is the one that took the most seconds.
SELECT step, count(*) AS trajectories,
       quantile_cont(t.end_ns - t.start_ns, 0.5) / 1e9 AS p50_s,
       quantile_cont(t.end_ns - t.start_ns, 0.99) / 1e9 AS p99_s,
       max(t.end_ns - t.start_ns) / 1e9 AS max_s,
       (max(t.end_ns) - quantile_disc(t.end_ns, 0.95)) / 1e9 AS last_5_percent_s,
       arg_max(t.trajectory, t.end_ns - t.start_ns) AS longest,
       arg_max(t.response_tokens, t.end_ns - t.start_ns) AS longest_tokens,
       arg_max(t.finish, t.end_ns - t.start_ns) AS longest_finish
FROM steps k JOIN trajectories t ON t.end_ns > k.start_ns AND t.end_ns <= k.end_ns
GROUP BY step
ORDER BY step
