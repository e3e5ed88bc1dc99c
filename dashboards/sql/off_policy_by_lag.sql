-- How far the policy had moved from the one that generated, by lag: log-ratio, clipping, samples left.
-- `effective_share` is (Σ w)² / Σ w² over the tokens: 1 is on-policy. Empty where not recorded.
WITH generated AS (
    SELECT trajectory, min(first_version) AS first_version
    FROM trajectories WHERE trajectory IS NOT NULL GROUP BY trajectory)
SELECT u.version - g.first_version AS lag, count(*) AS uses, sum(tokens) AS tokens,
       sum(mean_log_ratio * tokens) / sum(tokens) FILTER (mean_log_ratio IS NOT NULL)
           AS mean_log_ratio,
       sum(clip_share * tokens) / sum(tokens) FILTER (clip_share IS NOT NULL) AS clip_share,
       sum(sum_w) * sum(sum_w) / nullif(sum(sum_w_squared), 0)
           / sum(tokens) FILTER (sum_w IS NOT NULL) AS effective_share
FROM uses u LEFT JOIN generated g USING (trajectory)
WHERE fate = 'trained'
GROUP BY lag
ORDER BY lag
