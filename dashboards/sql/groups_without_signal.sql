-- Groups whose rewards were all equal, so that a group-relative advantage is zero: the 50 dearest.
-- The reward tells prompts that are too hard from those that are too easy; tokens and seconds are what
-- the group's responses cost.
WITH sampled AS (
    SELECT trajectory, max("group") AS "group", max(prompt) AS prompt,
           max(response_tokens) AS tokens, max(end_ns) - min(start_ns) AS ns
    FROM grouped_trajectories WHERE trajectory IS NOT NULL GROUP BY trajectory),
judged AS (
    SELECT "group", component, max(value) > min(value) AS differs, avg(value) AS reward,
           count(DISTINCT trajectory) AS samples
    FROM rewards JOIN sampled USING (trajectory)
    WHERE value IS NOT NULL AND "group" IS NOT NULL
    GROUP BY "group", component),
flat AS (
    SELECT "group", sum(reward) AS reward FROM judged WHERE samples > 1
    GROUP BY "group" HAVING NOT bool_or(differs))
SELECT "group", any_value(prompt) AS prompt, any_value(reward) AS reward, count(*) AS samples,
       sum(tokens) AS response_tokens, sum(ns) / 1e9 AS generation_s, min(u.step) AS step
FROM flat JOIN sampled USING ("group")
LEFT JOIN (SELECT trajectory, min(step) AS step FROM uses GROUP BY trajectory) u USING (trajectory)
GROUP BY "group"
ORDER BY response_tokens DESC NULLS LAST, "group"
LIMIT 50
