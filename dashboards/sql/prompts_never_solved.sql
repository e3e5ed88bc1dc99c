-- Prompts of which no sample was rewarded above 0, the 50 with the most samples first.
-- The reward of a sample is the sum of its components. Where a job tells no prompt, its groups count.
WITH sampled AS (
    SELECT trajectory, coalesce(max(prompt), max("group")) AS prompt, max(response_tokens) AS tokens
    FROM trajectories WHERE trajectory IS NOT NULL GROUP BY trajectory),
rewarded AS (
    SELECT trajectory, sum(value) AS reward
    FROM (SELECT trajectory, component, avg(value) AS value
          FROM rewards WHERE value IS NOT NULL AND trajectory IS NOT NULL
          GROUP BY trajectory, component)
    GROUP BY trajectory)
SELECT prompt, count(*) AS samples, max(reward) AS best_reward, avg(reward) AS mean_reward,
       sum(tokens) AS response_tokens
FROM rewarded JOIN sampled USING (trajectory)
WHERE prompt IS NOT NULL
GROUP BY prompt
HAVING max(reward) <= 0
ORDER BY samples DESC, response_tokens DESC, prompt
LIMIT 50
