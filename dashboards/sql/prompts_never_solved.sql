-- Prompts of which no sample was rewarded above 0, the 50 with the most samples first.
-- The reward of a sample is the sum of its components, weighted where the job stated its weights.
-- Where a job tells no prompt, its groups count.
WITH sampled AS (
    SELECT trajectory, coalesce(max(prompt), max("group")) AS prompt, max(response_tokens) AS tokens
    FROM trajectories WHERE trajectory IS NOT NULL GROUP BY trajectory)
SELECT prompt, count(*) AS samples, max(reward) AS best_reward, avg(reward) AS mean_reward,
       sum(tokens) AS response_tokens
FROM sample_rewards JOIN sampled USING (trajectory)
WHERE prompt IS NOT NULL
GROUP BY prompt
HAVING max(reward) <= 0
ORDER BY samples DESC, response_tokens DESC, prompt
LIMIT 50
