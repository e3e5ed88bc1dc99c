"""Ways to run verl that differ in what is generated and what is made of it: a trace counts as verl
does, and calls useful what verl's estimator gives an advantage."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rltrace.testing.inside.analysis import summarize
from tests.framework_jobs import fixtures_of
from tests.verl.jobs import ROLLOUT, Finished, Job, make_assets, train

PROMPTS = 8
_BINARY = (("VERL_CPU_BINARY", "1"),)
_ALONE = (
    "trainer.use_v1=False",
    "algorithm.adv_estimator=remax",
    "algorithm.use_kl_in_reward=True",
    "actor_rollout_ref.actor.use_kl_loss=False",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8",
    f"{ROLLOUT}.n=1",
)
_FILTERED = (
    "algorithm.adv_estimator=rloo",
    "algorithm.filter_groups.enable=True",
    "algorithm.filter_groups.metric=reward",
    "data.gen_batch_size=1",
)
_KEPT = ("trainer.save_freq=1", "trainer.default_local_dir={assets}/kept")

MODES = {
    "reinforce++": Job(("algorithm.adv_estimator=reinforce_plus_plus", f"{ROLLOUT}.n=2"), _BINARY),
    "grpo": Job(environment=_BINARY),
    "remax": Job(_ALONE),
    "filtered": Job(_FILTERED, _BINARY),
    "awaited": Job(("reward.custom_reward_function.name=compute_score_later",)),
    "kept": Job(_KEPT, steps=2),
    "resumed": Job((*_KEPT, "trainer.resume_mode=auto", "trainer.test_freq=1"), steps=4),
}
SAMPLES = {"reinforce++": 2, "remax": 1}
"""Of a prompt; 4 in others."""

assets, finished, _ = fixtures_of(MODES, (), make_assets, train)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, finished: Any) -> tuple[str, Finished]:
    if request.param == "resumed":
        finished("kept")
    return request.param, finished(request.param)


def test_a_step_trains_on_as_many_samples_and_tokens_as_verl_says(
    mode: tuple[str, Finished],
) -> None:
    name, job = mode
    assert job.problems == []
    first = 3 if name == "resumed" else 1
    assert job.rows("SELECT step FROM steps ORDER BY 1") == list(range(first, job.job.steps + 1))
    batch = PROMPTS * SAMPLES.get(name, 4)
    for step, metrics in job.metrics.items():
        ((samples, tokens),) = job.rows(
            "SELECT count(*), sum(coalesce(u.tokens, t.response_tokens)) FROM uses u"
            f" LEFT JOIN trajectories t USING (trajectory) WHERE u.step = {step}"
            " AND u.fate = 'trained'"
        )
        assert (samples, tokens) == (batch, pytest.approx(metrics["response_length/mean"] * batch))


def test_what_is_useful_is_what_the_estimator_gives_an_advantage(
    mode: tuple[str, Finished],
) -> None:
    name, job = mode
    found = summarize(job.run).goodput
    assert found is not None
    trained = found.trained
    equal = job.rows(
        "SELECT coalesce(sum(t.response_tokens), 0) FROM uses u JOIN trajectories t"
        ' USING (trajectory) WHERE u.fate = \'trained\' AND t."group" IN (SELECT "group" FROM'
        " rewards JOIN trajectories USING (trajectory) GROUP BY 1 HAVING min(value) = max(value))"
        f" AND u.step > {min(job.metrics)}"
    )
    if name in ("reinforce++", "remax"):
        assert equal != [0] or name == "remax"  # of which no sample is known by its id
        assert (trained.zero_advantage_tokens, trained.useful_tokens) == (0, trained.tokens)
    else:
        assert trained.zero_advantage_tokens == equal[0]
        assert (equal != [0]) == (name == "grpo")


def test_groups_that_verl_filtered_are_told_so(finished: Any) -> None:
    job = finished("filtered")
    fates = Counter(dict(job.rows("SELECT fate, count(*) FROM uses GROUP BY 1")))
    key = "training/filter_groups/evicted_samples"  # of groups, and where there were any
    evicted = [metrics.get(key, 0) for metrics in job.metrics.values()]
    assert fates == Counter(trained=PROMPTS * 4 * len(evicted), filtered=4 * sum(evicted))
    assert sum(evicted) > 0
    equal = job.rows(
        "SELECT DISTINCT r.value FROM uses u JOIN rewards r USING (trajectory)"
        " JOIN trajectories t USING (trajectory) WHERE u.fate = 'filtered'"
        ' GROUP BY t."group", r.value HAVING count(*) <> 4'
    )
    assert equal == []


def test_verdicts_that_are_awaited_are_all_there(finished: Any) -> None:
    job = finished("awaited")
    stamps = Counter(round(stamp["score"], 9) for stamp in job.stamps("reward"))
    assert Counter(round(v, 9) for v in job.rows("SELECT value FROM rewards")) == stamps


def test_a_baseline_of_its_own_sample_is_generated_and_not_trained_on(finished: Any) -> None:
    found = summarize(finished("remax").run).goodput
    assert found.generated_samples == 2 * PROMPTS * 3  # one of them greedy
    assert found.trained_share == pytest.approx(0.5, abs=0.35)
