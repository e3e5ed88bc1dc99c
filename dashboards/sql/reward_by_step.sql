-- The reward of the samples that each step met: mean, deviation, range; and their mean tokens.
-- The reward of a sample is the sum of its components: weighted as the trainer does, where the job
-- stated its weights (`reward_weights`), and else of the components as they are: so where TRL
-- normalises each of them first (`normalize_then_sum`), whose own `reward` is weighted all the same.
WITH met AS (
    SELECT trajectory, min(step) AS step, bool_or(fate = 'trained') AS trained, max(tokens) AS tokens
    FROM uses WHERE trajectory IS NOT NULL GROUP BY trajectory)
SELECT step, count(*) AS samples, avg(reward) AS reward, stddev_samp(reward) AS deviation,
       min(reward) AS lowest, max(reward) AS highest, avg(tokens) AS mean_response_tokens,
       count(*) FILTER (trained) / count(*) AS trained_share
FROM met LEFT JOIN sample_rewards USING (trajectory)
GROUP BY step
ORDER BY step
