-- How long verdicts took, by component: seconds p50, p90, p99, max, and all together.
SELECT component, count(*) AS verdicts, quantile_cont(end_ns - start_ns, 0.5) / 1e9 AS p50_s,
       quantile_cont(end_ns - start_ns, 0.9) / 1e9 AS p90_s,
       quantile_cont(end_ns - start_ns, 0.99) / 1e9 AS p99_s, max(end_ns - start_ns) / 1e9 AS max_s,
       sum(end_ns - start_ns) / 1e9 AS total_s
FROM rewards
WHERE end_ns IS NOT NULL
GROUP BY component
ORDER BY total_s DESC, component
