-- Every counter there is, in the unit that its name ends with: readings, first, mean, range, last.
-- Counters of bytes, joules and seconds are cumulative: last - first is what they counted.
SELECT counter, device, role, rank, count(*) AS readings, arg_min(value, time_ns) AS first,
       min(value) AS lowest, avg(value) AS mean, max(value) AS highest,
       arg_max(value, time_ns) AS last
FROM samples
GROUP BY counter, device, role, rank, process
ORDER BY counter, device, role, rank, process
