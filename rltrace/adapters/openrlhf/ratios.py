"""How far the policy that trains is from the one that generated, sample by sample.

Where it corrects for their difference (its flags say `is_correction`), OpenRLHF has two
log-probabilities of each token before it trains: that of vLLM when it generated, and that of the
policy now. It logs one mean of them, `vllm_kl`.
"""

from __future__ import annotations

from typing import Any


def of_samples(experience: Any) -> list[dict[str, float]]:
    """The columns of `uses` that tell of w = exp(now - when generated), for each sample of a
    micro-batch; an empty list where they are not known, or not on the CPU."""
    now, then = experience.action_log_probs, experience.rollout_log_probs
    mask = experience.action_mask
    if now is None or then is None or now.device.type != "cpu":
        return []
    log_w = (now.float() - then.float()).masked_fill(mask == 0, 0.0)
    w = log_w.exp() * mask
    sums = (log_w.sum(-1) / mask.sum(-1), w.sum(-1), (w * w).sum(-1))
    names = ("mean_log_ratio", "sum_w", "sum_w_squared")
    rows = zip(*(one.tolist() for one in sums), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]
