"""What the adapter shows of the built-in trainer beyond its ledger's counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rltrace
from rltrace.testing.inside.adapters import RayTrainer
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.hooks import Design, identify
from tests.adapters.conftest import JOBS, SMALL, WRAPPED, Rows, Traced, hooked_as, train

pytestmark = pytest.mark.slow

TracedJob = Callable[[str], Traced]


def test_the_job_does_the_same_with_and_without_a_trace(
    traced_job: TracedJob, tmp_path: Path
) -> None:
    # Floats are added in any order.
    approximate = {"seconds", "loss", "kl", "clip_share", "ess", "ratios"}

    def counted(ledger: dict[str, Any]) -> list[dict[str, Any]]:
        steps = [{k: v for k, v in s.items() if k not in approximate} for s in ledger["steps"]]
        return [step | {"reward": round(step["reward"], 9)} for step in steps]

    untraced = train(tmp_path, SMALL | JOBS["colocated"], wrap=())
    assert counted(untraced) == counted(traced_job("colocated").ledger)


@pytest.mark.parametrize("name", JOBS)
def test_processes_carry_their_roles_and_the_controller_the_placement(
    traced_job: TracedJob, name: str
) -> None:
    job = traced_job(name)
    size, placement = job.ledger["parameters"], job.ledger["config"]["placement"]
    assert sorted(
        (p.role, p.rank, p.facts.get("parameters"), p.facts.get("placement"))
        for p in job.run.processes
        if p.role and p.role != "agent"  # Ray may start a worker that it has no work for
    ) == [
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


def test_losses_are_those_of_the_ledger_and_what_was_dropped_has_no_ratios(
    traced_job: TracedJob,
) -> None:
    """And a sample has its group, its task, its one turn and no seconds in tools."""
    job = traced_job("colocated")
    losses = [record["loss"] for record in job.steps if record["loss"] is not None]
    assert losses
    found = job.rows("SELECT value FROM samples WHERE counter = 'loss' ORDER BY time_ns")
    assert found == pytest.approx(losses)
    drops = "SELECT count(*) FROM uses WHERE fate != 'trained' AND sum_w IS NULL"
    assert job.rows(drops) == [sum(job.counts("drops").values())]
    assert job.rows(
        'SELECT count(DISTINCT "group"), count(DISTINCT task), min(token_ids), min(logprobs),'
        " max(turns), max(env_ns) FROM trajectories"
    ) == [(4 * len(job.steps), 1, 1, 1, 1, 0)]


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
    actors = "SELECT DISTINCT step FROM spans WHERE stage IN ('rollout', 'reward')"
    assert job.rows(actors) == [None]
    waits = dict(job.rows("SELECT name, count(*) FROM spans WHERE stage = 'wait' GROUP BY 1"))
    assert waits["samples for the next step"] == len(job.steps)
    groups = job.total("samples") / 4
    assert groups <= waits["the lag bound"] <= groups + 1


@hooked_as(RayTrainer, "RolloutWorker", "ObjectStoreSubscriber")
class Receiver:
    """A worker whose engine has other work when weights have come than when they began to."""

    config = SimpleNamespace(sync="naive")
    engine = SimpleNamespace(version=1)
    task = SimpleNamespace(name="lookup")

    def complete(self, sequence: Any, **told: Any) -> Any:
        return SimpleNamespace(prompt=sequence.request.prompt, preemptions=0, **told)

    def receive(self, manifest: Any, left: int) -> int:
        self.engine.open = [0] * left
        self.load()
        return 1

    def load(self) -> None: ...


@pytest.mark.parametrize(
    ("open_before", "open_after", "beside"),
    [(2, 2, True), (2, 0, True), (0, 2, True), (0, 0, False)],
)
def test_a_receive_beside_any_generation_stalls_it_for_the_load_alone(
    rows: Rows, open_before: int, open_after: int, beside: bool
) -> None:
    """An engine that runs dry, or begins anew, while the weights travel was not held up by that."""
    receiver = Receiver()
    receiver.engine.open = [0] * open_before
    receiver.receive(SimpleNamespace(version=1, bytes=8), open_after)
    found = rows("SELECT version, bytes, role, stall_ns < end_ns - start_ns FROM syncs")
    assert found == [(1, 8, "sink", beside)]
    loads = "SELECT stall_ns >= s.end_ns - s.start_ns FROM syncs, spans s WHERE phase = 'load'"
    assert rows(loads) == [(True,)]


def test_token_ids_are_captured_as_the_engine_had_them(rows: Rows) -> None:
    """With a tool's, which are in between; and a sample that was cut before it began has none."""
    ends: dict[str, Any] = {"last_version": 3, "env_seconds": 0.5, "turns": 2, "faithful": True}
    requests = ("one", (1, 2)), ("two", (3,))
    given, cut = (
        SimpleNamespace(request=SimpleNamespace(id=id, group="g", prompt=prompt))
        for id, prompt in requests
    )
    Receiver().complete(given, tokens=np.array([5, 6, 7]), response_tokens=2, finish="stop", **ends)
    Receiver().complete(cut, tokens=np.array([], int), response_tokens=0, finish="abort", **ends)
    ids = "prompt_token_ids, response_token_ids"
    assert rows(f"SELECT trajectory, {ids} FROM captured ORDER BY 2") == [
        (identify("one"), [1, 2], [5, 6, 7]),
        (identify("two"), [3], None),
    ]
    columns = "env_ns, finish, token_ids, logprobs, response_tokens, prompt_tokens"
    assert rows(f"SELECT {columns} FROM trajectories ORDER BY finish DESC") == [
        (500_000_000, "stop", 1, 1, 2, 2),
        (500_000_000, "abort", 1, 1, 0, 1),
    ]


def test_samples_that_came_to_no_good_end(traced_job: TracedJob) -> None:
    """An engine that waits for tools does not generate."""
    job = traced_job("tools")
    assert {"stop", "length", "abort", "timeout", "error"} == set(job.counts("finish"))
    assert {"filtered", "failed", "truncated"} <= set(job.counts("drops"))
    exposed_s = {row.name: row.exposed_s.mean for row in summarize(job.run).stages}
    assert exposed_s["env"] > 0  # tools alone


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


def test_text_alone_brings_no_tokens_and_no_log_probs(traced_job: TracedJob) -> None:
    job = traced_job("text")
    assert job.rows("SELECT DISTINCT token_ids, logprobs FROM trajectories") == [(0, 0)]
    trained = job.rows("SELECT count(*), sum(tokens) FROM uses WHERE fate = 'trained'")
    for stage in ("logprob", "reference"):
        work = f"SELECT sum(items), sum(tokens) FROM spans WHERE stage = '{stage}'"
        assert job.rows(work) == trained


def test_checkpoints_are_seen_where_they_are_made(traced_job: TracedJob) -> None:
    assert traced_job("colocated").rows(
        "SELECT role, name FROM spans WHERE stage = 'checkpoint' ORDER BY start_ns"
    ) == [
        ("learner", "Learner.restore"),  # as it starts, of nothing
        ("learner", "Learner.state"),
        ("controller", "Checkpoint.save"),
    ]


def test_under_a_probe_actors_in_processes_of_their_own_get_the_doses_of_the_step(
    tmp_path: Path,
) -> None:
    steps, seed = 10, 4
    settings = SMALL | {"placement": "colocated", "steps": steps, "decode-floor": 0.01}
    settings |= {"update-floor": 0.05, "reward-latency": 0.005}
    probe = ("--probe", "--probe-budget", "12.5%", "--probe-seed", str(seed))
    train(tmp_path, settings, (*WRAPPED, *probe))
    run = rltrace.open_run(tmp_path / "run")
    rows = run.sql(
        "select distinct s.role, split_part(counter, '/', 2), k.step from samples s join steps k "
        "on s.time_ns between k.start_ns and k.end_ns "
        "where counter like 'probe/%/slept' and value > 0"
    ).fetchall()
    roles = {"rollout": "rollout", "reward": "reward", "train": "learner"}
    assert {(stage, role) for role, stage, _ in rows} >= roles.items()
    design = Design((), 0.125, seed)
    assert {(stage, step) for _, stage, step in rows} <= {
        (stage, place) for place in range(steps) for stage in design.doses(place)
    }
    assert summarize(run).probe is not None
    assert [p for p in run.problems if p["what"] == "not-probed"] == []
