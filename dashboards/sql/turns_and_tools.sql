-- Time in environments and tools by the number of turns: seconds, and its share of generation.
SELECT turns, count(*) AS trajectories, quantile_cont(end_ns - start_ns, 0.5) / 1e9 AS p50_s,
       quantile_cont(env_ns, 0.5) / 1e9 AS env_p50_s, quantile_cont(env_ns, 0.99) / 1e9 AS env_p99_s,
       sum(env_ns) / sum(end_ns - start_ns) FILTER (env_ns IS NOT NULL) AS env_share,
       avg(response_tokens) AS mean_response_tokens
FROM trajectories
WHERE end_ns IS NOT NULL
GROUP BY turns
ORDER BY turns
