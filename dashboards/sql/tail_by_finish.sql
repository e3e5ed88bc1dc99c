-- How trajectories ended, and how long they then are: seconds and response tokens, p50, p99, max.
SELECT finish, count(*) AS trajectories, count(*) / sum(count(*)) OVER () AS share,
       quantile_cont(end_ns - start_ns, 0.5) / 1e9 AS p50_s,
       quantile_cont(end_ns - start_ns, 0.99) / 1e9 AS p99_s, max(end_ns - start_ns) / 1e9 AS max_s,
       quantile_cont(response_tokens, 0.5) AS p50_tokens,
       quantile_cont(response_tokens, 0.99) AS p99_tokens, max(response_tokens) AS max_tokens
FROM trajectories
WHERE end_ns IS NOT NULL
GROUP BY finish
ORDER BY trajectories DESC, finish
