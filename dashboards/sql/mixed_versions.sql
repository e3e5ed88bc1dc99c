-- Samples that several policy versions generated: by how many versions, with tokens and seconds.
-- `versions` counts from that of the first token to that of the last; empty where either is unknown.
WITH sampled AS (
    SELECT trajectory, min(first_version) AS first, max(last_version) AS last,
           max(response_tokens) AS tokens, max(end_ns) - min(start_ns) AS ns
    FROM trajectories WHERE trajectory IS NOT NULL GROUP BY trajectory
    UNION ALL
    SELECT NULL, first_version, last_version, response_tokens, end_ns - start_ns
    FROM trajectories WHERE trajectory IS NULL)
SELECT last - first + 1 AS versions, count(*) AS samples,
       count(*) / sum(count(*)) OVER () AS share_of_samples, sum(tokens) AS response_tokens,
       sum(tokens) / sum(sum(tokens)) OVER () AS share_of_tokens,
       quantile_cont(ns, 0.5) / 1e9 AS p50_s
FROM sampled
GROUP BY versions
ORDER BY versions
