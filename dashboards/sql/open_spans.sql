-- What had begun and not ended when the trace ends: seconds since it began, the oldest first.
-- After a hang or a kill the culprit is usually among the oldest; spans, trajectories, verdicts and
-- weight updates. The trace ends where the report says: when the job ended, as far as somebody saw
-- it (else with the last time that anything in the trace has), and now while the job goes on.
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
    FROM syncs WHERE end_ns IS NULL)
SELECT kind, stage, name, step, role, rank, host, pid, make_timestamp_ns(start_ns) AS began_utc,
       (until_ns - start_ns) / 1e9 AS seconds
FROM open, recorded
ORDER BY start_ns, kind, name
LIMIT 200
