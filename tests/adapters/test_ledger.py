"""In every placement the trace counts what the trainer's own ledger counts, exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rltrace.testing.inside.adapters import RayTrainer
from rltrace.testing.inside.analysis import (
    ess_by_step,
    freshness,
    group_signal,
    ratio_sums,
    staleness,
)
from tests.adapters.conftest import JOBS, Traced

pytestmark = pytest.mark.slow


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest, traced_job: Callable[[str], Traced]) -> Traced:
    """Each of the jobs."""
    return traced_job(request.param)


def test_every_hook_found_its_target_and_could_read(job: Traced) -> None:
    assert [p for p in job.run.problems if p["what"] != "no-gpu"] == []
    assert len({hook.target for hook in RayTrainer.hooks}) == len(RayTrainer.hooks)


def test_every_sample_is_one_row(job: Traced) -> None:
    assert job.rows(
        "SELECT count(*), count(DISTINCT trajectory), count(end_ns), sum(response_tokens),"
        " sum(prompt_tokens) FROM trajectories"
    ) == [(*[job.total("samples")] * 3, job.total("tokens_generated"), job.total("prompt_tokens"))]
    assert job.rows(
        "SELECT count(DISTINCT trajectory) FROM trajectories t JOIN spans s USING (process)"
        " WHERE s.stage = 'rollout' AND s.start_ns <= t.start_ns AND t.start_ns < t.first_token_ns"
        " AND t.first_token_ns < t.end_ns AND t.first_token_ns < s.end_ns"
    ) == job.rows("SELECT count(*) FROM trajectories WHERE first_version IS NOT NULL")
    finishes = job.rows("SELECT finish, count(*) FROM trajectories GROUP BY 1")
    assert dict(finishes) == job.counts("finish")


def test_what_was_trained_on_and_what_was_dropped_and_why(job: Traced) -> None:
    fates = dict(job.rows("SELECT fate, count(*) FROM uses GROUP BY 1"))
    trained = sum(job.counts("lags").values())
    assert fates == {**job.counts("drops"), "trained": trained}
    assert job.rows("SELECT count(DISTINCT trajectory) FROM uses") == [sum(fates.values())]
    unused = "SELECT count(*) FROM trajectories ANTI JOIN uses USING (trajectory)"
    assert job.rows(unused) == [job.ledger["unused"]]
    assert job.rows("SELECT count(*) FROM uses ANTI JOIN trajectories USING (trajectory)") == [0]


def test_lags_in_flight_and_in_the_queue(job: Traced) -> None:
    for name, lag in (
        ("lags", "lag"),
        ("lags_in_flight", "last_version - first_version"),
        ("lags_in_queue", "version - last_version"),
    ):
        found = job.rows(f"SELECT {lag}, count(*) FROM lags WHERE fate = 'trained' GROUP BY 1")
        assert dict(found) == job.counts(name)


def test_effective_sample_size_and_clip_share_of_each_step_and_at_each_lag(job: Traced) -> None:
    trained = [record for record in job.steps if record["ess"] is not None]
    sums = ratio_sums(job.run)
    assert np.unique(sums.step).tolist() == [record["step"] for record in trained]
    shares, tokens = ess_by_step(sums)
    assert shares.tolist() == pytest.approx([record["ess"] for record in trained])
    assert tokens.tolist() == [record["tokens_trained"] for record in trained]
    found = freshness(job.run, staleness(job.run))
    assert found.objective == job.ledger["config"]["objective"]
    assert found.effective_share.value == pytest.approx(np.average(shares, weights=tokens))
    lags = sorted({int(lag) for record in trained for lag in record["ratios"]})
    assert [point.lag for point in found.curve] == lags
    for point in found.curve:
        mine = [r["ratios"][str(point.lag)] for r in trained if str(point.lag) in r["ratios"]]
        n, clipped, w, w_squared = (
            sum(one[name] for one in mine)
            for name in ("tokens", "clipped", "sum_w", "sum_w_squared")
        )
        assert (point.tokens, point.steps) == (n, len(mine))
        assert point.ess_share.value == pytest.approx(w**2 / (n * w_squared))
        assert point.clip_share.value == pytest.approx(clipped / n, abs=1e-12)


def test_groups_with_a_signal(job: Traced) -> None:
    """What was judged and not waited for any more, when a job ended or had enough, is in the trace
    alone."""
    found = group_signal(job.run)
    assert found is not None
    config = job.ledger["config"]
    exact = config["placement"] != "async" and config["oversample"] == 1
    more = found.groups - job.total("groups")
    assert more == 0 if exact else 0 <= more <= config["prompts"] * len(job.steps)
    assert 0 <= found.with_signal - job.total("groups_with_signal") <= more


def test_each_step_has_its_versions_uses_and_updates(job: Traced) -> None:
    assert job.rows("SELECT step FROM steps ORDER BY start_ns") == [s["step"] for s in job.steps]
    updates = dict(
        job.rows("SELECT step, count(*) FROM spans WHERE name = 'Learner.update' GROUP BY 1")
    )
    trains = job.rows(
        "SELECT step, version, items, tokens FROM spans WHERE name = 'Learner.train' ORDER BY step"
    )
    for record, train in zip(job.steps, trains, strict=True):
        number, version = record["step"], record["version"]
        of_step = f"FROM uses WHERE step = {number}"
        fates = dict(job.rows(f"SELECT fate, count(*) {of_step} GROUP BY 1"))
        trained = fates.pop("trained", 0)
        assert fates == record["drops"]
        assert trained == sum(record["lags"].values())
        assert updates.get(number, 0) == record["optimizer_updates"]
        assert train == (number, version, trained, record["tokens_trained"])
        [tokens] = job.rows(f"SELECT sum(tokens) {of_step} AND fate = 'trained'")
        assert (tokens or 0) == record["tokens_trained"]
        assert job.rows(f"SELECT count(*) {of_step} AND version <> {version}") == [0]


def test_weights_are_seen_at_both_ends(job: Traced) -> None:
    sinks = "SELECT sum(bytes) FROM syncs WHERE role = 'sink'"
    assert job.rows(sinks) == [job.total("sync_bytes")]
    sources = job.rows("SELECT version, bytes FROM syncs WHERE role = 'source' ORDER BY version")
    assert [version for version, _ in sources] == [s["version"] + 1 for s in job.steps]
    assert len({size for _, size in sources}) == 1
    assert job.rows(
        "SELECT count(*) FROM syncs WHERE stall_ns < 0 OR stall_ns > end_ns - start_ns"
        f" OR transport <> 'object-store' OR bytes <> {sources[0][1]}"
    ) == [0]
    [moved] = job.rows("SELECT count(*) FROM syncs WHERE role = 'sink'")
    phases = job.rows(
        "SELECT role, phase, count(*) FROM spans WHERE stage = 'sync' AND phase IS NOT NULL"
        " GROUP BY ALL ORDER BY ALL"
    )
    assert phases == [
        ("learner", "gather", len(sources)),
        ("learner", "transfer", len(sources)),
        ("rollout", "load", moved),
        ("rollout", "transfer", moved),
    ]


def test_verdicts(job: Traced) -> None:
    verdicts, judged_once = job.rows("SELECT count(*), count(DISTINCT trajectory) FROM rewards")[0]
    asked = job.rows("SELECT sum(items) FROM spans WHERE stage = 'reward'")[0]
    assert verdicts == judged_once
    # The last group that an async job asks for may be in work when the job ends.
    last = job.ledger["config"]["samples"] if job.ledger["config"]["placement"] == "async" else 0
    assert asked - last <= verdicts <= asked + last
    # A group that was cut, in the surplus or at the end of the run, is not judged any more, and
    # nobody waits for the verdicts of what is left over.
    cut = "SELECT \"group\" FROM trajectories WHERE finish = 'abort'"
    judged = f"finish IN ('stop', 'length') AND fate <> 'filtered' AND \"group\" NOT IN ({cut})"
    assert job.rows(
        "SELECT count(*) FROM trajectories LEFT JOIN uses USING (trajectory)"
        f" LEFT JOIN rewards r USING (trajectory) WHERE {judged} AND r.value IS NULL"
    ) == [0]
    component = job.ledger["config"]["task"]
    assert job.rows("SELECT DISTINCT component, outcome FROM rewards") == [(component, "ok")]
    if job.ledger["config"]["placement"] in ("colocated", "disaggregated"):
        means = job.rows(
            "SELECT avg(value) FROM steps s LEFT JOIN rewards r"
            " ON r.end_ns BETWEEN s.start_ns AND s.end_ns GROUP BY s.step ORDER BY s.step"
        )
        assert means == pytest.approx([record["reward"] for record in job.steps])


def test_tool_calls(job: Traced) -> None:
    calls, calls_ns = job.rows(
        "SELECT count(*), coalesce(sum(end_ns - start_ns), 0) FROM spans WHERE stage = 'env'"
    )[0]
    answered, failed, unanswered, env_ns = job.rows(
        "SELECT sum(turns - 1), count(*) FILTER (finish = 'error'),"
        " count(*) FILTER (finish IN ('timeout', 'abort', 'length')), sum(env_ns) FROM trajectories"
    )[0]
    assert answered + failed <= calls <= answered + failed + unanswered
    assert calls_ns >= env_ns
    assert job.rows(
        "SELECT count(*) FROM trajectories WHERE (env_ns > 0) <> (turns > 1 OR finish = 'error')"
        " AND finish IN ('stop', 'error')"
    ) == [0]
