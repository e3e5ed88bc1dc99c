"""AReaL 1.0.4: its engine client, workflow executor, staleness manager and FSDP learner on a CPU.

What the trace counts is what AReaL says, what the job took from the samples that it trained on, and
what arrived at the stub that stands for the engine.
"""

from __future__ import annotations

from collections import Counter

from rltrace.testing.inside.hooks import identify
from tests.framework_jobs import Ended

STEPS = 4
JOB = ("areal", "areal_train.py", "MODEL", "FOLDER", str(STEPS))
GROUP = 2


def test_an_answered_request_is_a_trajectory_with_tokens_and_versions(job: Ended[str]) -> None:
    noted = {}
    for sample in job.stamps("sample"):
        ends = (sample["versions"][0], sample["versions"][-1], sample["stop"])
        noted[identify(sample["rid"])] = (sample["prompt"], sample["tokens"], *ends)
    found = job.keyed(
        "SELECT trajectory, prompt_tokens, response_tokens, first_version, last_version, finish"
        " FROM trajectories WHERE response_tokens IS NOT NULL"
    )
    # Some were answered when the job ended, before anybody could look at the answer.
    assert noted.items() <= found.items()
    assert len(noted) >= STEPS * GROUP * 4


def test_the_samples_of_a_prompt_are_a_group(job: Ended[str]) -> None:
    numbers = {identify(sample["rid"]): sample["number"] for sample in job.stamps("sample")}
    groups: dict[int, set[int]] = {}
    for trajectory, group in job.rows('SELECT trajectory, "group" FROM trajectories'):
        if trajectory in numbers:
            groups.setdefault(group, set()).add(numbers[trajectory])
    assert all(len(of_group) == 1 for of_group in groups.values())
    assert len(groups) == len(set(numbers.values()))


def test_what_was_trained_on_is_what_the_batches_held(job: Ended[str]) -> None:
    expected = Counter(
        (use["step"], use["version"], use["first"], use["last"], use["tokens"])
        for use in job.stamps("trained")
    )
    found = Counter(
        job.rows(
            "SELECT u.step, u.version, first_version, last_version, u.tokens FROM uses u"
            " JOIN trajectories USING (trajectory) WHERE fate = 'trained'"
        )
    )
    assert found == expected
    assert len({step for step, *_ in expected}) == STEPS


def test_lags_are_what_areal_logs_of_them(job: Ended[str]) -> None:
    """AReaL moves the mask of what is trained on by a token, and the versions not: its own figures
    leave out the last token of each sample."""
    for figures in job.stamps("figures"):
        [(most, least, tokens)] = job.rows(
            "SELECT max(u.version - first_version), min(u.version - last_version),"
            " sum(u.tokens - 1) FROM uses u JOIN trajectories USING (trajectory)"
            f" WHERE fate = 'trained' AND u.step = {figures['step']}"
        )
        told = {name.rpartition("/")[2]: value for name, value in figures.items()}
        assert most == told["sample_staleness_theta_max"]
        assert least <= told["sample_staleness_theta_min"]
        assert tokens == told["n_valid_generated_tokens"]


def test_every_lag_is_known_and_some_samples_are_of_several_versions(job: Ended[str]) -> None:
    lags = job.rows("SELECT lag FROM lags WHERE fate = 'trained'")
    assert None not in lags
    assert min(lags) >= 0
    assert max(lags) > 0
    [mixed] = job.rows("SELECT count(*) FROM trajectories WHERE first_version < last_version")
    assert mixed > 0


def test_what_was_given_up_is_counted_as_the_staleness_manager_counts_it(job: Ended[str]) -> None:
    [staleness] = job.stamps("staleness")
    numbers = {identify(sample["rid"]): sample["number"] for sample in job.stamps("sample")}
    fates = job.rows("SELECT trajectory, fate FROM uses WHERE fate <> 'trained'")
    given_up = {numbers[trajectory] for trajectory, _ in fates}
    assert len(given_up) == staleness["rejected"]
    failed = {numbers[trajectory] for trajectory, fate in fates if fate == "failed"}
    assert failed == {number for number in given_up if number % 5 == 4}


def test_verdicts_are_those_that_the_workflow_got(job: Ended[str]) -> None:
    noted = {identify(sample["rid"]): sample["reward"] for sample in job.stamps("sample")}
    found = job.keyed("SELECT trajectory, value FROM rewards WHERE component = 'even'")
    assert noted.items() <= found.items()


def test_weights_are_counted_to_the_byte_that_arrived(job: Ended[str]) -> None:
    buckets = job.stamps("bucket")
    sources = job.rows("SELECT version, bytes FROM syncs WHERE role = 'source' ORDER BY version")
    size = sum(bucket["bytes"] for bucket in buckets) // STEPS
    assert sources == [(version, size) for version in range(1, STEPS + 1)]
    transfers = job.rows("SELECT bytes FROM spans WHERE phase = 'transfer' ORDER BY start_ns")
    assert transfers == [bucket["bytes"] for bucket in buckets]


def test_steps_are_areals_and_its_figures_are_there(job: Ended[str]) -> None:
    assert job.rows("SELECT step FROM steps ORDER BY start_ns") == list(range(STEPS))
    losses = job.rows("SELECT value FROM samples WHERE counter LIKE '%v_theta' ORDER BY time_ns")
    assert losses == list(range(STEPS))
    found = set(job.rows("SELECT DISTINCT stage FROM spans"))
    assert found >= {"step", "wait", "rollout", "reward", "train", "sync"}
