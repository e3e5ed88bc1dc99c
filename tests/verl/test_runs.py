"""What a trace of a real verl run counts is what verl and the plug-in's own stamps count.

Times are held to containment here: what a part of the job says of itself lies within the span that
watches it. How far apart the two ends are is measured in benchmarks/verl_stages.py, as no test may
depend on how busy a machine is.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.report import figures_of
from tests.framework_jobs import CLOCKS_NS, lie_within
from tests.verl.jobs import JOBS, Finished

BATCH = 32  # 8 prompts, 4 samples each
WORKERS = {
    "compute_log_prob": "old_log_prob",
    "compute_ref_log_prob": "ref",
    "update_actor": "update_actor",
}
"""Method of verl's worker -> the timer in which the driver waits for it."""


def is_legacy(job: Finished) -> bool:
    """Whether it is the trainer before V1."""
    return "trainer.use_v1=False" in job.job.settings or bool(job.job.version)


def is_async(job: Finished) -> bool:
    """Whether answers are under way when the job ends."""
    return any("_async" in setting for setting in job.job.settings)


def is_separate(job: Finished) -> bool:
    """Whether weights go through a checkpoint engine."""
    return any("separate_async" in setting for setting in job.job.settings)


def extent(values: list[Any]) -> tuple[float, float, float]:
    """Mean, most and least, as verl logs them."""
    return sum(values) / len(values), max(values), min(values)


def logged(metrics: dict[str, Any], name: str) -> Any:
    """The same, of a metric; verl computes means in single precision."""
    found = [metrics[f"{name}/{which}"] for which in ("mean", "max", "min")]
    return pytest.approx(tuple(found), rel=1e-5, abs=1e-6)


def test_every_hook_found_its_target_and_could_read(job: Finished) -> None:
    assert job.problems == []


def test_steps_are_verls_steps(job: Finished) -> None:
    steps = job.rows("SELECT step FROM steps ORDER BY start_ns")
    assert steps == list(job.metrics) == list(range(1, job.job.steps + 1))


def test_all_numbers_that_verl_logs_are_counters_in_their_step(job: Finished) -> None:
    logged = [
        (line["step"], name, value)
        for line in job.lines
        for name, value in line["data"].items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    steps = job.rows("SELECT start_ns, step FROM steps ORDER BY start_ns")
    readings = job.rows(
        "SELECT time_ns, counter, value FROM samples WHERE role = 'controller' ORDER BY time_ns"
    )
    found = [
        (max((number for start, number in steps if start < time_ns), default=0), name, value)
        for time_ns, name, value in readings
    ]
    assert Counter(reading[:2] for reading in found) == Counter(number[:2] for number in logged)
    for (*_, value), (*_, number) in zip(sorted(found), sorted(logged), strict=True):
        assert value == pytest.approx(number, rel=1e-6)  # the file has numpy's in their own width
    assert len(found) > 50 * len(steps)


def test_verls_figures_are_held_against_what_ran(job: Finished) -> None:
    found = summarize(job.run, figures=figures_of(job.run))
    figures = {figure.name: figure for figure in found.own_figures}
    if is_separate(job):  # the plug-in's checkpoint engine logs what it sends
        size = figures["checkpoint_engine/payload_mbytes"]
        assert (size.own_value, size.traced_value) == (job.job.sync_bytes, job.job.sync_bytes)
    else:
        size = figures["bytes of a weight update"]
        assert (size.is_logged, size.traced_value) == (False, job.job.sync_bytes * job.job.learners)
    gen, reward = figures["timing_s/gen"], figures["timing_s/reward"]
    assert gen.steps == reward.steps == found.steps.steady
    assert reward.traced_value > 0  # verl logs the collecting, if anything
    if is_async(job):
        return
    assert gen.own_value > gen.traced_value > 0  # generation lies within the wait for it
    assert ("every 2 s" in gen.reason) == (not is_legacy(job))


def test_a_step_trains_on_the_trajectories_that_verl_says(job: Finished) -> None:
    for step, metrics in job.metrics.items():
        rows = job.rows(
            "SELECT t.response_tokens, t.prompt_tokens, t.turns, t.finish, u.version, u.fate"
            f" FROM uses u JOIN trajectories t USING (trajectory) WHERE u.step = {step}"
        )
        assert len(rows) == BATCH
        responses, prompts, turns, finishes, versions, fates = map(list, zip(*rows, strict=True))
        whole = sum(responses) + sum(prompts)
        if job.job is JOBS["tools"]:  # verl's lengths have what tools answered, too
            assert extent(responses)[0] < metrics["response_length/mean"]
            assert whole < metrics["perf/total_num_tokens"]
        else:
            assert extent(responses) == logged(metrics, "response_length")
            assert whole == metrics["perf/total_num_tokens"]
        assert extent(prompts) == logged(metrics, "prompt_length")
        assert extent(turns) == logged(metrics, "num_turns")
        assert finishes.count("length") / BATCH == metrics["response_length/clip_ratio"]
        assert (set(versions), set(fates)) == ({step - 1}, {"trained"})


def test_verdicts_belong_to_what_is_trained_on(job: Finished) -> None:
    for step, metrics in job.metrics.items():
        scores = job.rows(
            f"SELECT value FROM uses JOIN rewards USING (trajectory) WHERE step = {step}"
        )
        assert len(scores) == BATCH
        assert extent(scores) == logged(metrics, "critic/score")


def test_lags_are_those_that_verl_logs(job: Finished) -> None:
    for step, metrics in job.metrics.items():
        rows = job.rows(
            "SELECT version - last_version, lag, last_version - first_version + 1"
            f" FROM lags WHERE step = {step}"
        )
        assert len(rows) == BATCH
        least, worst, spans = map(list, zip(*rows, strict=True))
        if is_legacy(job):  # it logs none, and cannot have any
            assert (set(least), set(worst), set(spans)) == ({0}, {0}, {1})
            continue
        logs = "training/off_policy/trajectory"
        assert extent(least) == logged(metrics, f"{logs}_staleness")
        assert extent(worst) == logged(metrics, f"{logs}_staleness_worst")
        assert extent(spans) == logged(metrics, f"{logs}_spans")


def test_asynchronous_runs_have_the_lags_that_make_them_so(job: Finished) -> None:
    assert (max(job.rows("SELECT lag FROM lags")) > 0) == is_async(job)
    mixed = job.rows("SELECT count(*) FROM trajectories WHERE first_version < last_version")[0]
    if job.job is JOBS["colocate"]:
        assert mixed > 0
    elif not is_async(job):  # elsewhere weights may come while a slow machine generates
        assert mixed == 0


def test_every_request_has_the_tokens_and_the_version_that_the_server_gave(job: Finished) -> None:
    spans = Counter(
        job.rows(
            "SELECT tokens, version FROM spans WHERE name LIKE '%Client.generate'"
            " AND tokens IS NOT NULL"
        )
    )
    stamps = Counter((s["tokens"], s["version"]) for s in job.stamps("generate"))
    if is_async(job):  # the last answers may find nobody who takes them
        assert spans <= stamps
        assert spans.total() >= BATCH * job.job.steps
    else:
        assert spans == stamps


def test_every_trajectory_is_one_row_with_its_tokens(job: Finished) -> None:
    count, distinct, groups = job.rows(
        'SELECT count(*), count(DISTINCT trajectory), count(DISTINCT "group") FROM trajectories'
    )[0]
    assert count == distinct == 4 * groups
    kept = "SELECT DISTINCT token_ids FROM trajectories WHERE response_tokens > 0"
    assert job.rows(kept) == [1]
    requests, tokens = job.rows(
        "SELECT count(*), sum(tokens) FROM spans WHERE name LIKE '%Client.generate'"
        " AND stage = 'rollout' AND tokens IS NOT NULL"
    )[0]
    if job.job is JOBS["tools"]:
        assert count == BATCH * job.job.steps
        # Before each turn of the model there is one, of the user or of the tool.
        assert job.rows("SELECT sum(turns) FROM trajectories") == [2 * requests]
    elif is_async(job):
        assert count >= BATCH * job.job.steps
        assert job.rows("SELECT sum(response_tokens) FROM trajectories")[0] <= tokens
    else:
        assert count == requests == BATCH * job.job.steps
        assert job.rows(
            "SELECT sum(response_tokens) FROM trajectories WHERE end_ns IS NOT NULL"
        ) == [tokens]


def test_calls_of_the_agent_loop_are_environment(job: Finished) -> None:
    stamps = job.stamps("tool")
    assert job.rows("SELECT count(*) FROM spans WHERE stage = 'env'") == [len(stamps)]
    if job.job is not JOBS["tools"]:
        assert stamps == []
        return
    asked, spent_ns = job.rows("SELECT count(*), sum(env_ns) FROM trajectories WHERE env_ns > 0")[0]
    assert 0 < asked == len(stamps) < BATCH * job.job.steps
    assert spent_ns >= sum(stamp["end_ns"] - stamp["start_ns"] for stamp in stamps) - CLOCKS_NS
    assert job.rows("SELECT DISTINCT env_ns > 0 FROM trajectories WHERE turns = 4") == [True]


def test_verdicts_are_those_of_the_reward_function(job: Finished) -> None:
    stamps = Counter(round(stamp["score"], 9) for stamp in job.stamps("reward"))
    verdicts = Counter(
        round(value, 9) for value in job.rows("SELECT value FROM rewards WHERE outcome = 'ok'")
    )
    assert verdicts <= stamps
    assert job.rows("SELECT DISTINCT component FROM rewards") == ["sums"]
    # An async job may end while verdicts are asked for: it takes the reward's worker with it.
    unanswered = "SELECT count(*) FROM rewards WHERE outcome <> 'ok'"
    used = " AND end_ns <= (SELECT max(time_ns) FROM uses)" if is_async(job) else ""
    assert job.rows(unanswered + used) == [0]
    if not is_async(job):
        validated = job.rows("SELECT count(*) FROM spans WHERE name LIKE '%Client.generate'"
                             " AND stage = 'eval'")[0]  # fmt: skip
        assert stamps.total() == verdicts.total() + validated


def test_weights_are_counted_to_the_byte(job: Finished) -> None:
    versions = list(range(job.job.steps + 1))
    sources = job.rows("SELECT rank, version, bytes FROM syncs WHERE role = 'source' ORDER BY ALL")
    assert sources == [
        (rank, version, job.job.sync_bytes)
        for rank in range(job.job.learners)
        for version in versions
    ]
    stamps = job.stamps("weights")
    assert Counter((s["version"], s["bytes"]) for s in stamps) == Counter(
        (version, job.job.sync_bytes) for version in versions for _ in range(job.job.learners)
    )
    sinks = job.rows("SELECT version, bytes, transport FROM syncs WHERE role = 'sink' ORDER BY ALL")
    if not is_separate(job):
        assert sinks == []
        return
    by_gloo = job.job is JOBS["separate"]
    transport = "gloo" if by_gloo else "shared-memory"
    assert sinks == [(version, job.job.sync_bytes, transport) for version in versions]
    sent = [(version, job.job.sync_bytes) for version in versions] if by_gloo else []
    assert [(s["version"], s["bytes"]) for s in job.stamps("send")] == sent
    wire = dict(job.rows("SELECT version, wire_bytes FROM syncs WHERE role = 'source'"))
    for step, metrics in job.metrics.items():
        assert wire[step] == metrics["checkpoint_engine/payload_mbytes"] * (1 << 20)


def test_workers_see_the_batch_that_verl_trains_on(job: Finished) -> None:
    for method in WORKERS:
        found = job.rows(
            "SELECT version + 1, sum(items), sum(tokens) FROM spans"
            f" WHERE name = 'ActorRolloutRefWorker.{method}' GROUP BY version ORDER BY version"
        )
        assert found == [
            (step, BATCH, metrics["perf/total_num_tokens"]) for step, metrics in job.metrics.items()
        ]


@pytest.mark.parametrize(
    ("what", "spans"),
    [
        ("generate", "name LIKE '%Client.generate'"),
        ("reward", "name = 'reward function'"),
        ("weights", "name LIKE '%Worker.update_weights'"),
        ("send", "name = 'ActorRolloutRefWorker.update_weights'"),
        ("tool", "stage = 'env'"),
    ],
)
def test_what_the_job_says_of_itself_lies_within_the_span_that_watches_it(
    job: Finished, what: str, spans: str
) -> None:
    around = job.rows(f"SELECT start_ns, end_ns FROM spans WHERE {spans}")
    last_ns = job.rows("SELECT max(end_ns) FROM steps")[0]
    stamps = [stamp for stamp in job.stamps(what) if stamp["end_ns"] < last_ns]
    assert stamps or what in ("send", "tool")
    assert lie_within(stamps, around)


def test_timers_are_never_shorter_than_verl_says_and_lie_within_their_step(job: Finished) -> None:
    steps = {step: rest for step, *rest in job.rows("SELECT step, start_ns, end_ns FROM steps")}
    for step, metrics in job.metrics.items():
        for name in ("gen", "adv", "update_weights", "step", *WORKERS.values()):
            rows = job.rows(
                "SELECT start_ns, end_ns FROM spans"
                f" WHERE name = '{name}' AND role = 'controller' AND step = {step}"
            )
            assert rows
            seconds = sum(end_ns - start_ns for start_ns, end_ns in rows) / 1e9
            assert seconds >= metrics[f"timing_s/{name}"] - CLOCKS_NS / 1e9
            start_ns, end_ns = steps[step]
            assert all(start_ns <= start and end <= end_ns for start, end in rows)


def test_a_worker_works_while_the_driver_waits_for_it(job: Finished) -> None:
    for method, timer in WORKERS.items():
        waits, works = (
            job.rows(f"SELECT start_ns, end_ns FROM spans WHERE {where}")
            for where in (
                f"name = '{timer}' AND role = 'controller'",
                f"name = 'ActorRolloutRefWorker.{method}'",
            )
        )
        assert lie_within([{"start_ns": start, "end_ns": end} for start, end in works], waits)


def test_next_to_nothing_of_the_steps_after_the_first_is_untraced(job: Finished) -> None:
    assert job.untraced <= 0.1  # on a machine of its own 0.03 at most


def test_the_stages_of_the_run(job: Finished) -> None:
    stages = set(job.rows("SELECT DISTINCT stage FROM spans"))
    expected = {"rollout", "reward", "logprob", "reference", "train", "sync", "wait", "step"}
    if job.job is JOBS["critic"]:
        expected |= {"value", "eval"}
    if job.job is JOBS["tools"]:
        expected |= {"env"}
    assert stages >= expected


def test_processes_say_what_they_are(job: Finished) -> None:
    roles = Counter(process.role for process in job.run.processes)
    assert roles["controller"] == roles["agent-loop"] == roles["reward"] == 1
    learners = {process.rank: process for process in job.run.processes if process.role == "learner"}
    assert sorted(learners) == list(range(job.job.learners))
    assert roles["learner"] == len(learners)
    assert learners[0].facts["parameters"] == 77_440  # verl counts them on the first rank only


def test_the_controller_says_what_it_optimises_and_how_often(job: Finished) -> None:
    facts = next(p.facts for p in job.run.processes if p.role == "controller")
    assert facts["objective"] == "ppo"
    # A batch is one mini-batch; trainers on devices of their own bring weights every second one.
    assert facts["updates_per_version"] == (2 if is_separate(job) else 1)
    assert facts.get("drops_stale") is (None if is_legacy(job) else True)
