"""Ways to run OpenRLHF that differ in what is generated and what is made of it: a trace counts as
OpenRLHF does, and calls useful what its estimator gives an advantage."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rltrace.testing.inside.analysis import summarize
from tests.framework_jobs import fixtures_of
from tests.openrlhf.jobs import PROMPTS, Finished, Job, make_assets, train

_FOUR = ("--rollout.n_samples_per_prompt=4", "--train.batch_size=16")
_BINARY = (("REWARD_BINARY", "1"),)
_EVALUATED = (
    "--eval.dataset={assets}/prompts.jsonl",
    "--eval.steps=2",
    "--eval.n_samples_per_prompt=3",
    "--eval.temperature=0",
)
_PARTIAL = ("--train.async_enable", "--train.partial_rollout_enable")
_SLOW = (("OPENRLHF_CPU_TOKEN_SECONDS", "0.02"),)
_FROZEN = (
    "--reward.model_name_or_path={assets}/model",
    "--reward.num_gpus_per_node=1",
    "--critic.num_gpus_per_node=1",
    "--algo.advantage.estimator=gae",
    "--critic.freezing_steps=1",
)

MODES = {
    "evaluated": Job(_EVALUATED),
    "evaluated async": Job((*_EVALUATED, "--train.async_enable")),
    "evaluated partial": Job((*_EVALUATED, *_PARTIAL), _SLOW),
    "evaluated 0.10.4": Job(_EVALUATED, version="0.10.4"),
    "reinforce": Job((*_FOUR, "--algo.advantage.estimator=reinforce"), _BINARY),
    "filtered": Job((*_FOUR, "--algo.dynamic_filtering_enable"), (("REWARD_BINARY", "score"),)),
    "frozen": Job(_FROZEN, (("GPUS", "5"), ("REWARD", ""))),
}
SAMPLES = {"reinforce": 4, "filtered": 4}
"""Of a prompt; 2 in others."""

EVALUATIONS = {
    "evaluated": 2, "evaluated async": 1, "evaluated partial": 1, "evaluated 0.10.4": 2
}  # fmt: skip

assets, finished, _ = fixtures_of(MODES, (), make_assets, train)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, finished: Any) -> tuple[str, Finished]:
    return request.param, finished(request.param)


def test_steps_and_what_they_train_on_are_openrlhfs(mode: tuple[str, Finished]) -> None:
    name, job = mode
    assert job.problems == []
    steps = job.rows("SELECT step FROM steps ORDER BY 1")
    assert steps == list(job.metrics)
    used = job.keyed("SELECT step, count(*) FROM uses WHERE fate = 'trained' GROUP BY 1")
    batch = PROMPTS * SAMPLES.get(name, 2)
    if name == "frozen":  # only the critic is trained, until step 3 trains on all three batches
        assert used == {3: 3 * batch, 4: batch}
        trained = "SELECT items FROM spans WHERE role = 'learner' AND stage = 'train' ORDER BY 1"
        assert job.rows(trained) == [batch, 3 * batch]
    elif name == "filtered":  # where prompts run out, the last batch is smaller
        assert all(count % 4 == 0 and count <= batch for count in used.values())
    else:
        assert used == dict.fromkeys(steps, batch)


def test_an_evaluation_is_in_no_figure_of_training(mode: tuple[str, Finished]) -> None:
    name, job = mode
    samples = job.rows("SELECT count(*) FROM trajectories")
    answers = job.rows("SELECT count(*) FROM spans WHERE stage = 'rollout' AND tokens > 0")
    of_eval = "SELECT count(*) FROM spans WHERE role = 'rollout' AND stage = 'eval' AND tokens > 0"
    assert samples == answers
    # Each evaluation is of all prompts that there are to train on, three times each. The
    # asynchronous trainer has no last one, as its generator has ended by then.
    evaluations = EVALUATIONS.get(name, 0)
    assert job.rows(of_eval) == [evaluations * 3 * 4 * PROMPTS]
    assert len(job.evaluations) == evaluations
    tokens = job.rows(of_eval.replace("count(*)", "coalesce(sum(tokens), 0)"))
    logged = (e["eval_response_length_mean"] * e["eval_num_samples"] for e in job.evaluations)
    assert tokens == [pytest.approx(sum(logged), rel=1e-6)]
    if name == "frozen":
        return
    rewards = Counter(round(stamp["score"], 9) for stamp in job.stamps("reward"))
    verdicts = Counter(round(v, 9) for v in job.rows("SELECT value FROM rewards"))
    assert verdicts <= rewards
    assert rewards.total() - verdicts.total() == job.rows(of_eval)[0]
    if evaluations:
        for step, metrics in job.metrics.items():
            (mean,) = job.rows(
                f"SELECT avg(value) FROM uses JOIN rewards USING (trajectory) WHERE step = {step}"
            )
            assert mean == pytest.approx(metrics["rollout/reward_mean"], rel=1e-4)


def test_what_is_useful_is_what_the_estimator_gives_an_advantage(
    mode: tuple[str, Finished],
) -> None:
    name, job = mode
    found = summarize(job.run).goodput
    assert found is not None
    equal = job.rows(
        'SELECT count(*) FROM (SELECT t."group" FROM uses u JOIN trajectories t USING (trajectory)'
        " JOIN rewards r USING (trajectory) WHERE u.fate = 'trained'"
        " GROUP BY 1 HAVING min(r.value) = max(r.value))"
    )
    if name in ("reinforce", "frozen"):
        assert equal != [0] or name == "frozen"
        assert found.trained.useful_known_tokens == found.trained.tokens > 0
    else:
        assert (equal != [0]) >= (found.trained.zero_advantage_tokens > 0)


def test_groups_that_openrlhf_filtered_are_told_so(finished: Any) -> None:
    job = finished("filtered")
    dropped = job.log.count("Filtered out: avg_reward=")
    assert dropped > 0
    fates = job.keyed("SELECT fate, count(*) FROM uses GROUP BY 1")
    assert fates == {"trained": 4 * PROMPTS * 4 - 4 * dropped, "filtered": 4 * dropped}
    found = summarize(job.run).signal
    assert found is not None
    assert found.with_signal == found.groups  # the rewards of each differ
