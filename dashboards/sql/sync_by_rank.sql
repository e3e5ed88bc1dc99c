-- Each process's part in weight updates, the slowest first: seconds, stalls, bytes and GB/s.
SELECT role, process_role, rank, host, count(*) AS updates,
       avg(end_ns - start_ns) / 1e9 AS mean_s, max(end_ns - start_ns) / 1e9 AS max_s,
       avg(stall_ns) / 1e9 AS mean_stall_s, sum(bytes) AS bytes,
       sum(bytes) / nullif(sum(end_ns - start_ns) FILTER (bytes IS NOT NULL), 0) AS gb_per_s,
       string_agg(DISTINCT transport, ', ') AS transports
FROM syncs
WHERE end_ns IS NOT NULL
GROUP BY role, process_role, rank, host, process
ORDER BY mean_s DESC, process
