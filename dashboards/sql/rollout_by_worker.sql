-- What each process generated: trajectories, tokens/s while it did, seconds p50 and p99.
SELECT role, rank, host, pid, count(*) AS trajectories, sum(response_tokens) AS response_tokens,
       sum(response_tokens) * 1e9 / nullif(max(end_ns) - min(start_ns), 0) AS tokens_per_s,
       quantile_cont(end_ns - start_ns, 0.5) / 1e9 AS p50_s,
       quantile_cont(end_ns - start_ns, 0.99) / 1e9 AS p99_s, sum(preemptions) AS preemptions
FROM trajectories
WHERE end_ns IS NOT NULL
GROUP BY role, rank, host, pid, process
ORDER BY role, rank, process
