-- How stale the samples were that were trained on: by lag in policy versions, samples and tokens.
-- Lag is the version that trains minus the version of the first token; empty where either is unknown.
WITH trained AS (
    SELECT trajectory, version, tokens FROM uses
    WHERE fate = 'trained'
    QUALIFY trajectory IS NULL OR row_number() OVER (PARTITION BY trajectory ORDER BY time_ns) = 1),
generated AS (
    SELECT trajectory, min(first_version) AS first_version, max(response_tokens) AS tokens
    FROM trajectories WHERE trajectory IS NOT NULL GROUP BY trajectory)
SELECT u.version - g.first_version AS lag, count(*) AS samples,
       count(*) / sum(count(*)) OVER () AS share_of_samples,
       sum(coalesce(u.tokens, g.tokens)) AS tokens,
       sum(coalesce(u.tokens, g.tokens)) / sum(sum(coalesce(u.tokens, g.tokens))) OVER ()
           AS share_of_tokens
FROM trained u LEFT JOIN generated g USING (trajectory)
GROUP BY lag
ORDER BY lag
