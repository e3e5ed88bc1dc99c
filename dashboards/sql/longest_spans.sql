-- The 30 longest spans that ended: what ran, where, in which step, for how many seconds.
SELECT stage, phase, name, role, rank, step, round((end_ns - start_ns) / 1e9, 6) AS seconds
FROM spans
WHERE end_ns IS NOT NULL AND stage <> 'step'
ORDER BY end_ns - start_ns DESC, start_ns
LIMIT 30
