-- The reward of the samples that each step met: mean, deviation, range; and their mean tokens.
-- The reward of a sample is the sum of its components.
WITH rewarded AS (
    SELECT trajectory, sum(value) AS reward
    FROM (SELECT trajectory, component, avg(value) AS value
          FROM rewards WHERE value IS NOT NULL AND trajectory IS NOT NULL
          GROUP BY trajectory, component)
    GROUP BY trajectory),
met AS (
    SELECT trajectory, min(step) AS step, bool_or(fate = 'trained') AS trained, max(tokens) AS tokens
    FROM uses WHERE trajectory IS NOT NULL GROUP BY trajectory)
SELECT step, count(*) AS samples, avg(reward) AS reward, stddev_samp(reward) AS deviation,
       min(reward) AS lowest, max(reward) AS highest, avg(tokens) AS mean_response_tokens,
       count(*) FILTER (trained) / count(*) AS trained_share
FROM met LEFT JOIN rewarded USING (trajectory)
GROUP BY step
ORDER BY step
