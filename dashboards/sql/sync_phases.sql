-- The phases of weight updates, by what ran them: seconds p50, p99, max and all together.
SELECT phase, name, role, count(*) AS spans, quantile_cont(end_ns - start_ns, 0.5) / 1e9 AS p50_s,
       quantile_cont(end_ns - start_ns, 0.99) / 1e9 AS p99_s, max(end_ns - start_ns) / 1e9 AS max_s,
       sum(end_ns - start_ns) / 1e9 AS total_s, sum(bytes) AS bytes
FROM spans
WHERE stage = 'sync' AND end_ns IS NOT NULL
GROUP BY phase, name, role
ORDER BY list_position(['gather', 'convert', 'transfer', 'load', 'visible'], phase), name, role
