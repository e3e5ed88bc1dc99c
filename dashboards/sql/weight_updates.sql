-- Each weight update: seconds from its first participant's begin to its last one's end, bytes, stalls.
-- GB/s is the bytes that its sources sent (else the most that one sink took) over that time.
SELECT version, make_timestamp_ns(min(start_ns)) AS began_utc,
       (max(end_ns) - min(start_ns)) / 1e9 AS seconds, count(*) AS participants,
       coalesce(sum(bytes) FILTER (role = 'source'), max(bytes)) AS bytes,
       coalesce(sum(bytes) FILTER (role = 'source'), max(bytes))
           / nullif(max(end_ns) - min(start_ns), 0) AS gb_per_s,
       max(stall_ns) / 1e9 AS longest_stall_s, string_agg(DISTINCT transport, ', ') AS transports
FROM syncs
WHERE end_ns IS NOT NULL
GROUP BY version, CASE WHEN version IS NULL THEN start_ns END
ORDER BY min(start_ns)
