-- How stale the samples were that were trained on: by lag in policy versions, samples and tokens.
-- Lag is the version that trains minus the version of the first token; empty where either is unknown.
-- A sample that several versions trained on has a lag with each, and counts with each.
WITH trained AS (
    SELECT trajectory, version, max(tokens) AS tokens FROM uses
    WHERE fate = 'trained' AND trajectory IS NOT NULL GROUP BY trajectory, version
    UNION ALL
    SELECT trajectory, version, tokens FROM uses WHERE fate = 'trained' AND trajectory IS NULL),
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
