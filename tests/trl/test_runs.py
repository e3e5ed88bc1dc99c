"""What a trace of a real TRL run counts is what TRL and the job's own stamps count.

Times are held to containment here: what a part of the job says of itself lies within the span that
watches it. How far apart the two ends are is measured in benchmarks/trl_stages.py, as no test may
depend on how busy a machine is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from rltrace.testing.inside.analysis import staleness
from tests.framework_jobs import lie_within
from tests.trl.jobs import EACH, JOBS, Finished

UPDATE = 8
"""Samples of an update of one rank: two micro-batches of four."""

BESIDE = ("step", "epoch")
"""What transformers adds to TRL's figures."""


@pytest.fixture
def own(job: Finished) -> Finished:
    """A job whose trainer generates itself, and judges with several functions."""
    if is_(job, "async", "pairs"):
        pytest.skip("another trainer")
    return job


@pytest.fixture
def apart(finished: Callable[[str], Finished]) -> Finished:
    """The job whose samples come from a process of their own."""
    return finished("async")


def is_(job: Finished, *names: str) -> bool:
    return job.job in [JOBS[name] for name in names]


def steps(job: Finished) -> range:
    return range(1, job.job.steps + 1)


def test_every_hook_found_its_target_and_could_read(job: Finished) -> None:
    assert job.problems == []


def test_steps_are_trls_steps(job: Finished) -> None:
    found = job.rows("SELECT step, start_ns, end_ns FROM steps ORDER BY start_ns")
    assert [step for step, _, _ in found] == list(job.metrics) == list(steps(job))
    for (_, _, end_ns), (_, start_ns, _) in pairwise(found):
        assert end_ns == start_ns


def test_its_own_figures_are_there_once(job: Finished) -> None:
    for step, metrics in job.metrics.items():
        found = job.rows(
            "SELECT counter, value FROM samples JOIN steps ON time_ns BETWEEN start_ns AND"
            f" steps.end_ns WHERE steps.step = {step} AND device IS NULL"
        )
        told = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, float | int) and name not in BESIDE
        }
        assert {name: value for name, value in found if name in told} == told
        assert Counter(name for name, _ in found if name in told).most_common(1)[0][1] == 1


# --- trainers that generate themselves


def test_every_sample_is_one_trajectory_of_its_prompt_with_its_tokens(own: Finished) -> None:
    count, distinct, groups = own.rows(
        'SELECT count(*), count(DISTINCT trajectory), count(DISTINCT "group") FROM trajectories'
    )[0]
    made = own.stamps("made")
    assert count == distinct == sum(len(stamp["tokens"]) for stamp in made) == EACH * groups
    found = Counter(own.rows("SELECT first_version, response_tokens FROM trajectories"))
    assert found == Counter((s["step"], tokens) for s in made for tokens in s["tokens"])
    assert own.rows("SELECT DISTINCT token_ids FROM trajectories WHERE response_tokens > 0") == [1]
    assert own.rows("SELECT count(*) FROM trajectories WHERE first_version <> last_version") == [0]
    of_groups = own.rows(
        'SELECT DISTINCT count(*), count(DISTINCT prompt) FROM trajectories GROUP BY "group"'
    )
    assert of_groups == [(EACH, 1)]


def test_a_step_trains_on_the_samples_that_its_loss_is_of(own: Finished) -> None:
    """Each sample is known by the reward that its tokens give, in shuffled and reused batches."""
    trained = own.stamps("trained")
    for step in steps(own):
        values = Counter(
            own.rows(
                "SELECT value FROM uses JOIN rewards USING (trajectory)"
                f" WHERE step = {step} AND fate = 'trained' AND component = 'identity'"
            )
        )
        mine = [stamp for stamp in trained if stamp["step"] == step - 1]
        assert values == Counter(sample for stamp in mine for sample in stamp["samples"])
        assert values.total() == UPDATE * own.job.ranks
        tokens = own.rows(f"SELECT tokens FROM uses WHERE step = {step}")
        assert Counter(tokens) == Counter(n for stamp in mine for n in stamp["tokens"])


def test_the_lag_of_a_sample_is_the_updates_since_it_was_made(own: Finished) -> None:
    made = {sample: s["step"] for s in own.stamps("made") for sample in s["samples"]}
    expected = Counter(
        stamp["step"] - made[sample]
        for stamp in own.stamps("trained")
        for sample in stamp["samples"]
    )
    assert Counter(own.rows("SELECT lag FROM lags WHERE fate = 'trained'")) == expected
    assert sorted(expected) == list(range(own.job.updates_of_a_batch))
    assert len(set(expected.values())) == 1  # a batch serves all its updates alike
    shown = {bar.lag: bar.trajectories for bar in staleness(own.run).by_first_token}
    assert shown == expected


def test_verdicts_are_those_that_the_functions_gave(own: Finished) -> None:
    assert own.rows("SELECT DISTINCT outcome FROM rewards") == ["ok"]
    given: dict[str, Counter[float]] = {"identity": Counter(), "some": Counter()}
    for stamp in own.stamps("reward"):
        given[stamp["function"]].update(v for v in stamp["values"] if v is not None)
    for name, values in given.items():
        assert Counter(own.rows(f"SELECT value FROM rewards WHERE component = '{name}'")) == values
    [joined] = own.rows("SELECT count(*) FROM rewards JOIN trajectories USING (trajectory)")
    assert joined == sum(values.total() for values in given.values())


FIGURES = {
    "rewards/identity/mean": "avg(value) FROM rewards JOIN trajectories USING (trajectory)"
    " WHERE component = 'identity' AND",
    "rewards/some/mean": "avg(value) FROM rewards JOIN trajectories USING (trajectory)"
    " WHERE component = 'some' AND",
    "reward": "avg(reward) FROM sample_rewards JOIN trajectories USING (trajectory) WHERE",
    "completions/clipped_ratio": "count(*) FILTER (finish = 'length') / count(*) FROM trajectories"
    " WHERE",
}
"""What TRL logs of a batch where it has generated one -> the same of the trace."""


def test_figures_of_a_batch_are_those_that_trl_logs(own: Finished) -> None:
    for step, metrics in own.metrics.items():
        for name in FIGURES.keys() & metrics.keys():
            query = f"SELECT {FIGURES[name]} first_version = {step - 1}"
            assert own.rows(query) == [pytest.approx(metrics[name], rel=1e-5)]
    assert own.metrics[1].keys() >= FIGURES.keys()


def test_groups_carry_a_signal_where_trl_says_that_their_rewards_differ(own: Finished) -> None:
    for step, metrics in own.metrics.items():
        if "frac_reward_zero_std" in metrics:
            [without] = own.rows(
                "SELECT count(*) FILTER (NOT signal) / count(*) FROM signals JOIN"
                ' (SELECT DISTINCT "group" FROM trajectories'
                f' WHERE first_version = {step - 1}) USING ("group")'
            )
            if own.job.kind == "rloo":  # a KL penalty makes rewards differ there that were equal
                assert metrics["frac_reward_zero_std"] <= without
            else:
                assert without == pytest.approx(metrics["frac_reward_zero_std"])


def test_each_function_has_a_span_as_long_as_it_ran(own: Finished) -> None:
    for name in ("identity", "some"):
        spans = own.rows(f"SELECT count(*) FROM spans WHERE name = '{name}' AND stage = 'reward'")
        stamps = [stamp for stamp in own.stamps("reward") if stamp["function"] == name]
        assert spans == [len(stamps)]
        around = own.rows(f"SELECT start_ns, end_ns FROM rewards WHERE component = '{name}'")
        assert lie_within(stamps, around)


def test_the_stages_that_only_some_jobs_have(own: Finished) -> None:
    found = set(own.rows("SELECT DISTINCT stage FROM spans"))
    assert found >= {"rollout", "reward", "reference", "train", "data", "other", "step"}
    # Log-probs are recomputed where a batch outlives an update; the weights then move with vLLM.
    again = own.job.updates_of_a_batch > 1 or is_(own, "rloo", "server")
    assert ("logprob" in found) == again
    assert ("sync" in found) == is_(own, "server")


def test_workers_see_what_was_generated(own: Finished) -> None:
    """Rows and tokens of the forward passes, rank by rank."""
    total = own.rows("SELECT sum(prompt_tokens + response_tokens) FROM trajectories")
    for stage in ("reference", "logprob"):
        # An adapter's model is its own reference, and does not know when.
        stamps = own.stamps("logprob" if is_(own, "adapter") else stage)
        if own.rows(f"SELECT 1 FROM spans WHERE stage = '{stage}' LIMIT 1"):
            [(rows, tokens)] = own.rows(
                f"SELECT sum(items), sum(tokens) FROM spans WHERE stage = '{stage}'"
            )
            assert rows == sum(stamp["rows"] for stamp in stamps)
            assert [tokens] == total


def test_weights_for_a_server_are_counted_to_the_byte(own: Finished) -> None:
    loads = own.stamps("load")
    assert bool(loads) == is_(own, "server")
    sources = own.rows("SELECT version, bytes, buckets FROM syncs ORDER BY version")
    every = own.job.updates_of_a_batch
    assert sources == [(i * every, s["bytes"], s["tensors"]) for i, s in enumerate(loads)]


def test_ranks_say_who_they_are_and_only_the_first_counts_steps(own: Finished) -> None:
    learners = [process for process in own.run.processes if process.role == "learner"]
    assert sorted(process.rank for process in learners) == list(range(own.job.ranks))
    assert {process.facts["objective"] for process in learners} == {
        "decoupled" if is_(own, "server") else "ppo"
    }
    placement = "disaggregated" if is_(own, "server") else "colocated"
    assert {process.facts["placement"] for process in learners} == {placement}
    assert own.rows("SELECT DISTINCT rank FROM spans WHERE stage = 'step'") == [0]
    for rank in range(own.job.ranks):
        assert own.rows(f"SELECT count(*) FROM uses WHERE rank = {rank}") == [
            UPDATE * own.job.steps
        ]
        numbers = own.rows(
            f"SELECT DISTINCT step FROM spans WHERE stage = 'train' AND rank = {rank} ORDER BY step"
        )
        assert numbers == list(steps(own))


# --- the asynchronous trainer


def test_every_request_is_seen_where_it_is_made(apart: Finished) -> None:
    """Those that were still running when the worker was stopped never came back."""
    answered = Counter(stamp["tokens"] for stamp in apart.stamps("request"))
    seen = Counter(
        apart.rows(
            "SELECT tokens FROM spans WHERE role = 'rollout' AND stage = 'rollout'"
            " AND tokens IS NOT NULL"
        )
    )
    assert seen <= answered
    assert answered.total() - seen.total() <= 16  # what may be in flight


def test_every_judged_sample_has_tokens_group_and_verdicts(apart: Finished) -> None:
    given = [stamp for stamp in apart.stamps("reward") if stamp["function"] == "identity"]
    values = Counter(value for stamp in given for value in stamp["values"])
    found = Counter(apart.rows("SELECT value FROM rewards WHERE component = 'identity'"))
    assert found <= values
    assert values.total() - found.total() <= EACH  # a group that was being judged at the end
    groups = apart.rows(
        'SELECT count(*) FROM trajectories WHERE "group" IS NOT NULL GROUP BY "group"'
    )
    assert set(groups) == {EACH}
    kept = "SELECT DISTINCT token_ids FROM trajectories WHERE response_tokens > 0"
    assert apart.rows(kept) == [1]
    [tokens] = apart.rows(
        "SELECT count(*) FROM trajectories JOIN rewards USING (trajectory)"
        " WHERE component = 'identity' AND response_tokens > 0 AND prompt_tokens > 0"
    )
    assert tokens == found.total()


def test_a_step_trains_on_as_many_samples_and_tokens_as_trl_says(apart: Finished) -> None:
    for step, metrics in apart.metrics.items():
        [(samples, tokens, known)] = apart.rows(
            "SELECT count(*), sum(uses.tokens), count(response_tokens) FROM uses"
            " LEFT JOIN trajectories USING (trajectory)"
            f" WHERE step = {step} AND fate = 'trained'"
        )
        assert samples == known == metrics["batch/samples_per_step"] == UPDATE
        assert tokens == metrics["batch/trained_tokens_per_step"]


def test_what_was_too_old_is_told(apart: Finished) -> None:
    dropped = sum(m.get("sample/dropped_stale_total") or 0 for m in apart.metrics.values())
    [stale] = apart.rows("SELECT count(*) FROM uses WHERE fate = 'stale' AND step >= 1")
    # What is dropped while the last update is under way is in no log of TRL's any more.
    assert dropped <= stale


def test_versions_are_the_servers(apart: Finished) -> None:
    """A sample begins with the version that the server has, or one that it is about to have: the
    number goes up when it has taken the weights."""
    loads = apart.stamps("load")
    assert apart.rows("SELECT version, bytes, buckets FROM syncs ORDER BY version") == [
        (stamp["version"], stamp["bytes"], stamp["tensors"]) for stamp in loads
    ]
    assert len(loads) == apart.job.steps + 1
    versions = apart.rows("SELECT DISTINCT version FROM uses WHERE fate = 'trained' ORDER BY 1")
    assert versions == list(steps(apart))
    lags = apart.rows("SELECT lag FROM lags WHERE fate = 'trained'")
    assert None not in lags
    # TRL bounds it where it takes a sample out of the queue, one micro-batch ahead.
    assert 0 <= min(lags) <= max(lags) <= 2 + 1


def test_lag_where_it_trains_is_never_below_what_trl_says_of_the_queue(apart: Finished) -> None:
    """TRL has a group's version for all its samples, which some begin after."""
    first: dict[int, int] = {}
    for group, version in apart.rows('SELECT "group", first_version FROM trajectories'):
        first[group] = min(version, first.get(group, version))
    for step, metrics in apart.metrics.items():
        ages = [
            version - first[group]
            for version, group in apart.rows(
                'SELECT version, "group" FROM uses JOIN trajectories USING (trajectory)'
                f" WHERE step = {step} AND fate = 'trained'"
            )
        ]
        assert max(ages) >= metrics["sample/staleness_max"] - 1
        assert min(ages) >= 0


def test_processes_say_what_they_are_and_do(apart: Finished) -> None:
    roles = Counter(process.role for process in apart.run.processes)
    assert roles["learner"] == roles["rollout"] == 1
    facts = next(p.facts for p in apart.run.processes if p.role == "learner")
    assert (facts["placement"], facts["drops_stale"]) == ("async", True)
    assert facts["updates_per_version"] == 1
    found = {
        role: set(apart.rows(f"SELECT DISTINCT stage FROM spans WHERE role = '{role}'"))
        for role in ("learner", "rollout")
    }
    assert found["learner"] >= {"train", "sync", "wait", "step"}
    assert found["rollout"] >= {"rollout", "reward"}
    assert "rollout" not in found["learner"]


# --- online DPO


def test_pairs_are_groups_of_two(finished: Callable[[str], Finished]) -> None:
    job = finished("pairs")
    groups = job.rows('SELECT count(*), count(DISTINCT prompt) FROM trajectories GROUP BY "group"')
    assert set(groups) == {(2, 1)}
    assert len(groups) == UPDATE * job.job.steps
    values = Counter(v for stamp in job.stamps("reward") for v in stamp["values"])
    assert Counter(job.rows("SELECT value FROM rewards")) == values
    assert Counter(job.rows("SELECT lag FROM lags")) == {0: 2 * UPDATE * job.job.steps}
    answered = job.rows("SELECT count(*) FROM trajectories WHERE response_tokens > 0")
    assert answered == [2 * UPDATE * job.job.steps]
    assert job.rows("SELECT count(*) FROM spans WHERE stage = 'reference'") == [2 * job.job.steps]


# --- all of them


@pytest.mark.parametrize(
    ("what", "stage"),
    [
        ("generate", "rollout"),
        ("request", "rollout"),
        ("reward", "reward"),
        ("reference", "reference"),
        ("load", "sync"),
    ],
)
def test_what_the_job_says_of_itself_lies_within_what_watches_it(
    job: Finished, what: str, stage: str
) -> None:
    spans = job.rows(f"SELECT start_ns, end_ns FROM spans WHERE stage = '{stage}'")
    last = max((end_ns for _, end_ns in spans if end_ns is not None), default=0)
    assert lie_within([stamp for stamp in job.stamps(what) if stamp["start_ns"] < last], spans)


def test_next_to_nothing_of_the_steps_after_the_first_is_untraced(job: Finished) -> None:
    assert job.untraced <= 0.1  # on a machine of its own 0.03 at most
