-- Groups whose rewards were all equal, so that a group-relative advantage is zero: the 50 dearest.
-- The reward tells prompts that are too hard from those that are too easy; tokens and seconds are what
-- the group's responses cost.
WITH sampled AS (
    SELECT trajectory, max("group") AS "group", max(prompt) AS prompt,
           max(response_tokens) AS tokens, max(end_ns) - min(start_ns) AS ns
    FROM grouped_trajectories WHERE trajectory IS NOT NULL GROUP BY trajectory)
SELECT "group", any_value(prompt) AS prompt, avg(reward) AS reward, count(*) AS samples,
       sum(tokens) AS response_tokens, sum(ns) / 1e9 AS generation_s, min(u.step) AS step
FROM signals JOIN sampled USING ("group") LEFT JOIN sample_rewards USING (trajectory)
LEFT JOIN (SELECT trajectory, min(step) AS step FROM uses GROUP BY trajectory) u USING (trajectory)
WHERE NOT signal
GROUP BY "group"
ORDER BY response_tokens DESC NULLS LAST, "group"
LIMIT 50
