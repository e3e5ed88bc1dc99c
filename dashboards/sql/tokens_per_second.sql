-- Tokens for each second of a step: response tokens that were finished in it, and trained on in it.
-- A sample is counted once in each step that trained on it (goodput counts it in the first only),
-- however often it was recorded there; what its length is not known of, not at all.
WITH finished AS (
    SELECT trajectory, max(end_ns) AS ns, max(response_tokens) AS tokens
    FROM trajectories WHERE trajectory IS NOT NULL GROUP BY trajectory
    UNION ALL
    SELECT NULL, end_ns, response_tokens FROM trajectories WHERE trajectory IS NULL),
trained AS (
    SELECT time_ns AS ns, u.trajectory, coalesce(u.tokens, f.tokens) AS tokens
    FROM uses u LEFT JOIN finished f ON f.trajectory = u.trajectory
    WHERE fate = 'trained'),
generated AS (
    SELECT k.start_ns, count(*) AS samples, sum(tokens) AS tokens
    FROM steps k JOIN finished f ON f.ns > k.start_ns AND f.ns <= k.end_ns GROUP BY k.start_ns),
taken AS (
    SELECT k.start_ns, t.tokens
    FROM steps k JOIN trained t ON t.ns > k.start_ns AND t.ns <= k.end_ns
    QUALIFY t.trajectory IS NULL
            OR row_number() OVER (PARTITION BY k.start_ns, t.trajectory ORDER BY t.ns) = 1),
learned AS (SELECT start_ns, count(*) AS samples, sum(tokens) AS tokens FROM taken GROUP BY start_ns)
SELECT step, seconds, g.samples AS finished_samples, g.tokens AS finished_tokens,
       g.tokens / seconds AS finished_tokens_per_s, l.samples AS trained_samples,
       l.tokens AS trained_tokens, l.tokens / seconds AS trained_tokens_per_s
FROM steps k LEFT JOIN generated g USING (start_ns) LEFT JOIN learned l USING (start_ns)
ORDER BY start_ns
