-- Verdicts that failed, by component and process: timeouts and errors, and the seconds they took.
SELECT component, role, rank, host, count(*) AS verdicts,
       count(*) FILTER (outcome = 'timeout') AS timeouts,
       count(*) FILTER (outcome = 'error') AS errors,
       count(*) FILTER (outcome IN ('timeout', 'error')) / count(*) AS failed_share,
       sum(end_ns - start_ns) FILTER (outcome IN ('timeout', 'error')) / 1e9 AS failed_s
FROM rewards
GROUP BY component, role, rank, host, process
HAVING count(*) FILTER (outcome IN ('timeout', 'error')) > 0
ORDER BY failed_share DESC, component, role, rank
