-- What part of the steps' wall time each stage runs in, and seconds a step (mean, longest).
-- All steps that ended, warm-up among them; stages overlap, so the shares may add up to more than 1.
WITH ended AS (SELECT count(DISTINCT step) AS steps, sum(seconds) AS seconds FROM steps)
SELECT stage, sum(t.seconds) / any_value(e.seconds) AS share,
       sum(t.seconds) / any_value(e.steps) AS mean_s, max(t.seconds) AS longest_s,
       count(*) AS steps_with_it, sum(spans) AS spans
FROM stages t, ended e
GROUP BY stage
ORDER BY share DESC, stage
