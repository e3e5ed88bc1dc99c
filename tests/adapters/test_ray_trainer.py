"""What the adapter shows of the built-in trainer beyond its ledger's counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.adapters import ray_trainer
from rltrace.adapters.ray_trainer import RayTrainer
from rltrace.testing.inside.analysis import summarize
from tests.adapters.conftest import JOBS, SMALL, Traced, train

pytestmark = pytest.mark.slow

TracedJob = Callable[[str], Traced]


def test_the_job_does_the_same_with_and_without_a_trace(
    traced_job: TracedJob, tmp_path: Path
) -> None:
    def counted(ledger: dict[str, Any]) -> list[dict[str, Any]]:
        approximate = {
            "seconds",
            "loss",
            "kl",
            "clip_share",
            "ess",
            "ratios",
        }  # floats are added in any order
        steps = [{k: v for k, v in s.items() if k not in approximate} for s in ledger["steps"]]
        return [step | {"reward": round(step["reward"], 9)} for step in steps]

    untraced = train(tmp_path, SMALL | JOBS["colocated"], traced=False)
    assert counted(untraced) == counted(traced_job("colocated").ledger)


@pytest.mark.parametrize("name", JOBS)
def test_processes_carry_their_roles_and_the_controller_the_placement(
    traced_job: TracedJob, name: str
) -> None:
    job = traced_job(name)
    known = sorted(
        (p.role, p.rank, p.facts.get("parameters"), p.facts.get("placement"))
        for p in job.run.processes
        if p.role and p.role != "agent"  # Ray may start a worker that it has no work for
    )
    size = job.ledger["parameters"]
    placement = job.ledger["config"]["placement"]
    assert known == [
        ("controller", None, None, placement),
        ("learner", 0, size, None),
        ("reference", 0, size, None),
        ("reward", 0, None, None),
        ("rollout", 0, size, None),
        ("rollout", 1, size, None),
    ]
    composition = summarize(job.run).composition
    assert composition is not None
    assert (composition.placement, composition.placement_source) == (placement, "as the job states")


def test_a_step_lasts_as_long_as_the_ledger_says_or_longer(traced_job: TracedJob) -> None:
    job = traced_job("colocated")
    lengths = job.rows("SELECT (end_ns - start_ns) / 1e9 FROM steps ORDER BY step")
    for seconds, record in zip(lengths, job.steps, strict=True):
        # Its clock starts as the step before ends, and a busy machine may pause in between.
        assert seconds >= record["seconds"] - 0.05


def test_losses_are_those_of_the_ledger(traced_job: TracedJob) -> None:
    job = traced_job("colocated")
    found = job.rows("SELECT value FROM samples WHERE counter = 'loss' ORDER BY time_ns")
    losses = [record["loss"] for record in job.steps if record["loss"] is not None]
    assert losses
    assert found == pytest.approx(losses)


def test_without_tools_a_trajectory_lies_inside_its_engines_work(traced_job: TracedJob) -> None:
    job = traced_job("colocated")
    # Whoever waits for the engine's last sequences goes on right after it has stopped.
    after_ns = 50_000_000
    assert job.rows(
        "SELECT count(DISTINCT t.trajectory) FROM trajectories t JOIN spans s USING (process)"
        " WHERE s.stage = 'rollout' AND s.start_ns <= t.start_ns"
        f" AND t.end_ns <= s.end_ns + {after_ns}"
    ) == [job.total("samples")]
    assert job.rows(
        'SELECT count(DISTINCT "group"), count(DISTINCT task), min(token_ids), min(logprobs),'
        " max(turns), max(env_ns) FROM trajectories"
    ) == [(4 * len(job.steps), 1, 1, 1, 1, 0)]


def test_ratios_of_trained_samples_are_near_one_on_policy(traced_job: TracedJob) -> None:
    job = traced_job("colocated")
    rows = job.rows(
        "SELECT sum_w / tokens, sum_w_squared / tokens, clip_share, mean_log_ratio FROM uses"
        " WHERE fate = 'trained'"
    )
    assert rows
    for mean_w, mean_w_squared, clip_share, mean_log_ratio in rows:
        assert mean_w_squared >= mean_w**2 * 0.999  # by Cauchy and Schwarz
        assert 0 <= clip_share <= 1
        assert abs(mean_log_ratio) < 1
    drops = job.rows("SELECT count(*) FROM uses WHERE fate != 'trained' AND sum_w IS NULL")
    assert drops == [sum(job.counts("drops").values())]


def test_what_runs_when_nothing_waits_for_anything(traced_job: TracedJob) -> None:
    """Versions pass while sequences are generated, overtaken groups are dropped, and all is seen
    where it belongs although one process is at many calls at once."""
    job = traced_job("async")
    assert job.counts("drops")["stale"] > 0
    assert set(job.counts("lags")) == {0, 1}
    assert job.counts("lags_in_flight")[1] > 0
    assert job.counts("lags_in_queue")[1] > 0
    mixed, preempted = job.rows(
        "SELECT count(*) FILTER (last_version > first_version), count(*) FILTER (preemptions > 0)"
        " FROM trajectories"
    )[0]
    assert preempted >= mixed > 0
    assert job.rows("SELECT DISTINCT step FROM spans WHERE stage IN ('rollout', 'reward')") == [
        None
    ]
    waits = dict(job.rows("SELECT name, count(*) FROM spans WHERE stage = 'wait' GROUP BY 1"))
    assert waits["samples for the next step"] == len(job.steps)
    groups = job.total("samples") / 4
    assert groups <= waits["the lag bound"] <= groups + 1


def test_weights_that_arrive_beside_generation_stop_it_only_to_be_loaded(
    traced_job: TracedJob,
) -> None:
    stalls = "SELECT count(*) FILTER (stall_ns < end_ns - start_ns), count(*) FROM syncs"
    beside, _ = traced_job("async").rows(f"{stalls} WHERE role = 'sink'")[0]
    assert beside > 0
    for name in ("colocated", "disaggregated", "one-step-off"):  # nothing is generated meanwhile
        assert traced_job(name).rows(f"{stalls} WHERE role = 'sink'")[0][0] == 0


@pytest.mark.parametrize(
    ("open_before", "open_after", "stall_ns"),
    [(2, 2, 10), (2, 0, 10), (0, 2, 10), (0, 0, 1000)],
)
def test_a_receive_beside_any_generation_stalls_it_for_the_load_alone(
    monkeypatch: pytest.MonkeyPatch, open_before: int, open_after: int, stall_ns: int
) -> None:
    """An engine that runs dry, or begins anew, while the weights travel was not held up by that."""
    receive, load = (
        next(hook for hook in RayTrainer.hooks if hook.target.endswith(name))
        for name in (".receive", ".load")
    )
    stalls: list[int] = []
    monkeypatch.setattr(ray_trainer, "_sync", lambda call, role, manifest, ns: stalls.append(ns))
    engine = SimpleNamespace(open=[0] * open_before, version=1)
    loading = SimpleNamespace(start_ns=500, end_ns=510)
    call: Any = SimpleNamespace(
        self=SimpleNamespace(engine=engine), recorder=SimpleNamespace(), argument=lambda name: None,
        state=None, result=1, start_ns=0, end_ns=1000,
    )  # fmt: skip
    assert receive.before is not None
    assert receive.after is not None
    assert load.after is not None
    receive.before(call)
    engine.open = [0] * open_after
    load.after(loading)  # type: ignore[arg-type]
    receive.after(call)
    assert stalls == [stall_ns]


def test_samples_that_came_to_no_good_end(traced_job: TracedJob) -> None:
    job = traced_job("tools")
    assert {"stop", "length", "abort", "timeout", "error"} == set(job.counts("finish"))
    assert {"filtered", "failed", "truncated"} <= set(job.counts("drops"))
    calls, of_samples = job.rows(
        "SELECT (SELECT sum(end_ns - start_ns) FROM spans WHERE stage = 'env'), sum(env_ns)"
        " FROM trajectories"
    )[0]
    assert calls >= of_samples > 0


def test_samples_that_were_cut_before_they_began(traced_job: TracedJob) -> None:
    job = traced_job("text")
    count, tokens, length_ns, versions, finish = job.rows(
        "SELECT count(*), sum(response_tokens), sum(end_ns - start_ns),"
        " count(first_version) + count(last_version), any_value(DISTINCT finish)"
        " FROM trajectories WHERE first_token_ns IS NULL"
    )[0]
    assert count > 0
    assert (tokens, length_ns, versions, finish) == (0, 0, 0, "abort")
    assert job.counts("drops")["filtered"] >= count


def test_an_engine_that_waits_for_tools_does_not_generate(traced_job: TracedJob) -> None:
    job = traced_job("tools")
    exposed_s = {row.name: row.exposed_s.mean for row in summarize(job.run).stages}
    assert exposed_s["env"] > 0  # tools alone


def test_text_alone_brings_no_tokens_and_no_log_probs(traced_job: TracedJob) -> None:
    job = traced_job("text")
    assert job.rows("SELECT DISTINCT token_ids, logprobs FROM trajectories") == [(0, 0)]
    for stage in ("logprob", "reference"):
        assert job.rows(
            f"SELECT sum(items), sum(tokens) FROM spans WHERE stage = '{stage}'"
        ) == job.rows("SELECT count(*), sum(tokens) FROM uses WHERE fate = 'trained'")


def test_checkpoints_are_seen_where_they_are_made(traced_job: TracedJob) -> None:
    assert traced_job("colocated").rows(
        "SELECT role, name FROM spans WHERE stage = 'checkpoint' ORDER BY start_ns"
    ) == [
        ("learner", "Learner.restore"),  # as it starts, of nothing
        ("learner", "Learner.state"),
        ("controller", "Checkpoint.save"),
    ]
