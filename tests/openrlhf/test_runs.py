"""What a trace of a real OpenRLHF run counts is what OpenRLHF and the plug-in's own stamps count.

Times are held to containment here: what a part of the job says of itself lies within the span that
watches it. How far apart the two ends are is measured in benchmarks/openrlhf_stages.py, as no test
may depend on how busy a machine is.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from tests.framework_jobs import lie_within
from tests.openrlhf.jobs import JOBS, PARAMETERS, PROMPTS, SAMPLES, SYNC_BYTES, TENSORS, Finished

BATCH = PROMPTS * SAMPLES
REQUESTS = "name = 'RolloutRayActor.generate'"


def is_(job: Finished, *names: str) -> bool:
    return job.job in [JOBS[name] for name in names]


def steps(job: Finished) -> range:
    return range(1, job.job.steps + 1)


def trained(job: Finished, step: int, columns: str, more: str = "") -> list[Any]:
    """What is known of the trajectories that a step was trained on."""
    return job.rows(
        f"SELECT {columns} FROM uses JOIN trajectories USING (trajectory) {more}"
        f" WHERE step = {step} AND fate = 'trained'"
    )


def test_every_hook_found_its_target_and_could_read(job: Finished) -> None:
    assert job.problems == []


def test_steps_are_openrlhfs_steps(job: Finished) -> None:
    found = job.rows("SELECT step, start_ns, end_ns FROM steps ORDER BY start_ns")
    assert [step for step, _, _ in found] == list(job.metrics) == list(steps(job))
    for (_, _, end_ns), (_, start_ns, _) in pairwise(found):
        assert end_ns <= start_ns
        between = f"start_ns >= {end_ns} AND end_ns <= {start_ns} AND role = 'controller'"
        assert job.rows(f"SELECT name FROM spans WHERE {between}") == []


def test_it_really_trains_and_its_own_figures_are_there(job: Finished) -> None:
    for step, metrics in job.metrics.items():
        found = dict(
            job.rows(
                "SELECT counter, value FROM samples JOIN steps ON time_ns BETWEEN start_ns AND"
                f" steps.end_ns WHERE steps.step = {step}"
            )
        )
        assert {name: found.get(name) for name in metrics} == metrics
        assert None not in metrics.values()
        assert {"policy_loss", "actor_grad_norm", "kl"} <= set(metrics)


def test_every_request_has_the_tokens_that_vllm_gave(job: Finished) -> None:
    requests = Counter(job.rows(f"SELECT tokens FROM spans WHERE {REQUESTS}"))
    assert requests == Counter(stamp["tokens"] for stamp in job.stamps("request"))
    if not is_(job, "agent"):
        assert requests.total() == BATCH * job.job.steps


def test_every_sample_is_one_trajectory_with_its_tokens_and_versions(job: Finished) -> None:
    count, distinct, groups = job.rows(
        'SELECT count(*), count(DISTINCT trajectory), count(DISTINCT "group") FROM trajectories'
    )[0]
    assert count == distinct == SAMPLES * groups == BATCH * job.job.steps
    kept = "SELECT DISTINCT token_ids FROM trajectories WHERE response_tokens > 0"
    assert job.rows(kept) == [1]
    stamps = job.stamps("request")
    if is_(job, "agent"):
        assert job.rows("SELECT sum(turns), sum(response_tokens) FROM trajectories") == [
            (len(stamps), sum(stamp["tokens"] for stamp in stamps))
        ]
        return
    found = job.rows(
        "SELECT response_tokens, finish, first_version, last_version FROM trajectories"
    )
    assert Counter(found) == Counter(
        (stamp["tokens"], stamp["finish"], stamp["first"], stamp["last"]) for stamp in stamps
    )


def test_a_step_trains_on_the_samples_that_openrlhf_says(job: Finished) -> None:
    for step, metrics in job.metrics.items():
        rows = trained(job, step, "response_tokens, finish, uses.version, uses.tokens")
        assert len(rows) == BATCH == metrics["rollout/num_samples"]
        tokens, finishes, versions, given = map(list, zip(*rows, strict=True))
        assert set(versions) == {step - 1}
        assert tokens == given
        assert finishes.count("length") / BATCH == metrics["rollout/truncated_rate"]
        if not is_(job, "agent"):  # there OpenRLHF counts what the environment says, too
            assert sum(tokens) / BATCH == metrics["rollout/response_length_mean"]


def test_verdicts_belong_to_what_is_trained_on(job: Finished) -> None:
    for step, metrics in job.metrics.items():
        values = trained(job, step, "value", "JOIN rewards USING (trajectory)")
        assert len(values) == BATCH
        assert sum(values) / BATCH == pytest.approx(metrics["rollout/reward_mean"], rel=1e-5)


def test_verdicts_are_those_that_were_given(job: Finished) -> None:
    components = {"agent": "agent", "critic": "reward model", "served": "reward server"}
    name = next(name for name, known in JOBS.items() if known is job.job)
    assert job.rows("SELECT DISTINCT component, outcome FROM rewards") == [
        (components.get(name, "reward_func"), "ok")
    ]
    if name not in ("agent", "critic"):
        values = Counter(job.rows("SELECT value FROM rewards"))
        assert values == Counter(stamp["score"] for stamp in job.stamps("reward"))
    if name == "agent":
        total = sum(stamp["score"] for stamp in job.stamps("step"))
        assert math.fsum(job.rows("SELECT value FROM rewards")) == total


def test_lag_is_zero_unless_generation_goes_on_meanwhile(job: Finished) -> None:
    """The asynchronous trainer has a batch generated while it trains on another; only in partial
    rollout may some of it begin after the update."""
    lags = {step: job.rows(f"SELECT lag FROM lags WHERE step = {step}") for step in steps(job)}
    assert [len(found) for found in lags.values()] == [BATCH] * job.job.steps
    assert set(lags.pop(1)) == {0}
    for found in lags.values():
        if is_(job, "async", "whole"):
            assert min(found) >= 1
        elif is_(job, "partial"):
            assert min(found) >= 0
        else:
            assert set(found) == {0}
    assert (max(map(max, lags.values())) > 0) == is_(job, "async", "partial", "whole")


def test_trajectories_of_several_versions_are_those_of_partial_rollout(job: Finished) -> None:
    mixed = job.rows("SELECT count(*) FROM trajectories WHERE first_version < last_version")[0]
    assert mixed == sum(stamp["first"] < stamp["last"] for stamp in job.stamps("request"))
    assert (mixed > 0) == is_(job, "partial")


def test_ratios_by_sample_add_up_to_the_mean_that_openrlhf_logs(job: Finished) -> None:
    """It keeps both log-probabilities of a token only where it corrects for their difference."""
    if not is_(job, "async", "partial", "whole"):
        assert job.rows("SELECT count(mean_log_ratio) FROM uses") == [0]
        return
    for step, metrics in job.metrics.items():
        mean = f"sum(mean_log_ratio * tokens) / sum(tokens) FROM uses WHERE step = {step}"
        assert job.rows(f"SELECT {mean}") == [pytest.approx(-metrics["vllm_kl"], rel=1e-3)]


def test_weights_are_counted_to_the_byte(job: Finished) -> None:
    """Engines read the first weights from disk: there is no update before the first step's."""
    whole = is_(job, "whole")
    update = (SYNC_BYTES, 1, "shared-memory") if whole else (SYNC_BYTES, TENSORS, "gloo")
    columns = "version, bytes, buckets, transport"
    sources = job.rows(f"SELECT rank, {columns} FROM syncs WHERE role = 'source' ORDER BY version")
    assert sources == [(0, step, *update) for step in steps(job)]
    sinks = job.rows(
        "SELECT pid, version, bytes, buckets FROM syncs WHERE role = 'sink' ORDER BY version, pid"
    )
    engines = sorted({pid for pid, *_ in sinks})
    assert len(engines) == job.job.engines
    assert sinks == [(pid, step, *update[:2]) for step in steps(job) for pid in engines]
    if whole:
        assert job.rows("SELECT DISTINCT transport FROM syncs") == ["shared-memory"]
        assert job.stamps("send") == job.stamps("receive") == []
        return
    assert sum(stamp["bytes"] for stamp in job.stamps("send")) == SYNC_BYTES * job.job.steps
    arrived: Counter[int] = Counter()
    for stamp in job.stamps("receive"):
        arrived[stamp["pid"]] += stamp["bytes"]
    assert list(arrived.values()) == [SYNC_BYTES * job.job.steps] * job.job.engines


def test_an_update_is_never_longer_than_openrlhf_says(job: Finished) -> None:
    """What it logs has the wait for the lock and for the engines to pause in it."""
    for step, metrics in job.metrics.items():
        [seconds] = job.rows(
            "SELECT (end_ns - start_ns) / 1e9 FROM spans"
            f" WHERE role = 'controller' AND stage = 'sync' AND step = {step}"
        )
        assert 0 < seconds <= metrics["timing/broadcast"]


@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("request", "trajectories"),
        ("reward", "spans WHERE stage = 'reward'"),
        ("step", "spans WHERE stage = 'env'"),
        ("send", "spans WHERE stage = 'sync' AND role = 'learner'"),
        ("receive", "spans WHERE stage = 'sync' AND role = 'rollout'"),
    ],
)
def test_what_the_job_says_of_itself_lies_within_what_watches_it(
    job: Finished, what: str, where: str
) -> None:
    around = job.rows(f"SELECT start_ns, end_ns FROM {where}")
    stamps = job.stamps(what)
    only = {"step": is_(job, "agent"), "reward": not is_(job, "agent", "critic")}
    only |= dict.fromkeys(("send", "receive"), not is_(job, "whole"))
    assert bool(stamps) == only.get(what, True)
    assert lie_within(stamps, around)


def test_a_verdict_is_busy_for_as_long_as_the_reward_function_runs(job: Finished) -> None:
    stamps = job.stamps("reward")
    if stamps:
        [busy_s] = job.rows("SELECT sum(end_ns - start_ns) / 1e9 FROM rewards")
        true_s = sum(stamp["end_ns"] - stamp["start_ns"] for stamp in stamps) / 1e9
        if is_(job, "served"):  # there is a way to the server, and back
            assert busy_s > true_s > 0.2 * len(stamps)
        else:
            assert busy_s == pytest.approx(true_s, rel=0.05, abs=0.005 * len(stamps))


def test_calls_of_the_environment_are_environment(job: Finished) -> None:
    stamps = job.stamps("step")
    made = job.rows("SELECT count(*) FROM spans WHERE stage = 'env' AND name LIKE '%.step'")
    assert made == [len(stamps)]
    if stamps:
        spent_ns = job.rows("SELECT sum(env_ns) FROM trajectories")[0]
        assert spent_ns >= sum(stamp["end_ns"] - stamp["start_ns"] for stamp in stamps)


def test_workers_see_the_batch_that_is_trained_on_in_the_step_that_it_is_of(job: Finished) -> None:
    passes = {("learner", "logprob"), ("learner", "train"), ("reference", "reference")}
    if is_(job, "critic"):
        passes |= {("critic", "value"), ("critic", "train"), ("reward", "reward")}
    for step in steps(job):
        tokens = sum(trained(job, step, "prompt_tokens + response_tokens"))
        found = job.rows(
            "SELECT role, stage, sum(items), sum(spans.tokens) FROM spans JOIN steps ON"
            " spans.start_ns >= steps.start_ns AND spans.end_ns <= steps.end_ns"
            f" WHERE steps.step = {step} AND role IN ('learner', 'reference', 'critic', 'reward')"
            " AND items IS NOT NULL AND stage <> 'sync' GROUP BY ALL"
        )
        assert {(role, stage) for role, stage, _, _ in found} == passes
        for _, _, items, seen in found:
            assert items == BATCH
            if not is_(job, "agent"):  # an environment's tokens are in no trajectory
                assert seen == tokens


def test_the_stages_of_the_run(job: Finished) -> None:
    found = set(job.rows("SELECT DISTINCT stage FROM spans"))
    expected = {"rollout", "logprob", "reference", "train", "sync", "wait", "step"}
    expected |= {"env"} if is_(job, "agent") else {"reward"}
    if is_(job, "critic"):
        expected |= {"value"}
    assert found >= expected


def test_next_to_nothing_of_the_steps_after_the_first_is_untraced(job: Finished) -> None:
    assert job.untraced <= 0.1  # on a machine of its own 0.03 at most


def test_processes_say_what_they_are(job: Finished) -> None:
    roles = Counter(process.role for process in job.run.processes)
    assert roles["rollout"] == job.job.engines
    assert roles["reference"] == roles["learner"] == job.job.learners
    assert roles["generator"] == is_(job, "async", "partial", "whole")
    assert roles["critic"] == roles["reward"] == is_(job, "critic")
    learners = {process.rank: process for process in job.run.processes if process.role == "learner"}
    assert sorted(learners) == list(range(job.job.learners))
    assert learners[0].facts["parameters"] == PARAMETERS


def test_the_controller_says_what_it_optimises_and_how_often(job: Finished) -> None:
    facts = next(p.facts for p in job.run.processes if "objective" in p.facts)
    corrects = any("is_correction_level" in flag for flag in job.job.flags)
    assert facts["objective"] == ("decoupled" if corrects else "ppo")
    assert facts["updates_per_version"] == 1  # a batch is trained on at once
    assert facts["drops_stale"] is False
