-- What had begun and not ended when the trace ends: seconds since it began, the oldest first.
-- After a hang or a kill the culprit is usually among the oldest; spans, trajectories, verdicts and
-- weight updates. The trace ends with the last time that anything in it has.
WITH open AS (
    SELECT 'span' AS kind, stage, name, step, role, rank, host, pid, start_ns
    FROM spans WHERE end_ns IS NULL
    UNION ALL
    SELECT 'trajectory', 'rollout', NULL, NULL, role, rank, host, pid, start_ns
    FROM trajectories WHERE end_ns IS NULL
    UNION ALL
    SELECT 'verdict', 'reward', component, NULL, role, rank, host, pid, start_ns
    FROM rewards WHERE end_ns IS NULL
    UNION ALL
    SELECT 'weight update', 'sync', role, NULL, process_role, rank, host, pid, start_ns
    FROM syncs WHERE end_ns IS NULL),
times AS (
    SELECT max(greatest(start_ns, end_ns)) AS ns FROM spans
    UNION ALL SELECT max(greatest(start_ns, end_ns)) FROM trajectories
    UNION ALL SELECT max(greatest(start_ns, end_ns)) FROM rewards
    UNION ALL SELECT max(greatest(start_ns, end_ns)) FROM syncs
    UNION ALL SELECT max(time_ns) FROM uses
    UNION ALL SELECT max(time_ns) FROM samples)
SELECT kind, stage, name, step, role, rank, host, pid, make_timestamp_ns(start_ns) AS began_utc,
       ((SELECT max(ns) FROM times) - start_ns) / 1e9 AS seconds
FROM open
ORDER BY start_ns, kind, name
LIMIT 200
