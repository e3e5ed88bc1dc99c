-- The 30 longest spans that ended, in seconds: what ran, where, and in which step.
SELECT (end_ns - start_ns) / 1e9 AS seconds, stage, phase, name, step, role, rank, host,
       make_timestamp_ns(start_ns) AS began_utc
FROM spans
WHERE end_ns IS NOT NULL AND stage <> 'step'
ORDER BY seconds DESC, start_ns
LIMIT 30
