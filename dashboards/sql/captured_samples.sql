-- Captured samples of the lowest and the highest reward, 20 each: token ids of prompt and response.
-- There are some where the run was recorded by `rltrace wrap --capture-tokens`; their tokenizer
-- makes text of them (docs/reference/queries.md). A sample without a verdict is not among them.
WITH used AS (SELECT trajectory, min(step) AS step FROM uses GROUP BY trajectory),
     judged AS (
    SELECT trajectory, reward, row_number() OVER (ORDER BY reward, trajectory) AS place,
           count(*) OVER () AS samples
    FROM sample_rewards
    WHERE NOT isnan(reward) AND trajectory IN (SELECT trajectory FROM captured_tokens))
SELECT trajectory, u.step AS used_in_step, reward, len(prompt_token_ids) AS prompt_tokens,
       len(response_token_ids) AS response_tokens, prompt_token_ids, response_token_ids
FROM judged JOIN captured USING (trajectory) LEFT JOIN used u USING (trajectory)
WHERE place <= 20 OR place > samples - 20
ORDER BY reward, trajectory, start_ns
