-- Who waited for what: time blocked on a queue, lock or barrier, in seconds, by name and role.
SELECT name, role, count(DISTINCT process) AS processes, count(*) AS waits,
       sum(end_ns - start_ns) / 1e9 AS total_s, avg(end_ns - start_ns) / 1e9 AS mean_s,
       quantile_cont(end_ns - start_ns, 0.99) / 1e9 AS p99_s, max(end_ns - start_ns) / 1e9 AS max_s
FROM spans
WHERE stage = 'wait' AND end_ns IS NOT NULL
GROUP BY name, role
ORDER BY total_s DESC, name, role
