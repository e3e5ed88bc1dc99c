-- How many groups of each step carry a signal: rewards that differ within them.
-- A group is of the step that first met one of its samples. `flat_reward` is the mean reward of those
-- without: near the lowest where prompts are too hard, near the highest where they are too easy.
WITH sampled AS (
    SELECT trajectory, max("group") AS "group", max(response_tokens) AS tokens
    FROM grouped_trajectories WHERE trajectory IS NOT NULL GROUP BY trajectory),
met AS (
    SELECT "group", min(step) AS step
    FROM uses JOIN sampled USING (trajectory) GROUP BY "group"),
spent AS (
    SELECT "group", sum(tokens) AS tokens, avg(reward) AS reward
    FROM sampled LEFT JOIN sample_rewards USING (trajectory) GROUP BY "group")
SELECT step, count(*) AS groups, count(*) FILTER (signal) AS with_signal,
       count(*) FILTER (signal) / count(*) AS share, avg(reward) AS reward,
       avg(reward) FILTER (NOT signal) AS flat_reward,
       sum(tokens) FILTER (NOT signal) AS flat_response_tokens
FROM signals JOIN met USING ("group") JOIN spent USING ("group")
WHERE signal IS NOT NULL
GROUP BY step
ORDER BY step
