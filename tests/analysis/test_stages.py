"""Time in stages: unions, nesting, which stage a moment is charged to, and who is in a stage in the
background."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.timeline.stages import stage_rows
from rltrace.testing import Process, between, process, run_of
from rltrace.testing.inside.analysis import Chain, read_activity
from rltrace.testing.inside.trace import Stage, word
from tests.analysis.made import breakdown_of, rows, steps_of
from tests.analysis.walls.walled import STEPS, job, samples

ROLLOUT, REWARD, ENV, TRAIN = Stage.ROLLOUT, Stage.REWARD, Stage.ENV, Stage.TRAIN
SYNC, WAIT, OTHER = Stage.SYNC, Stage.WAIT, Stage.OTHER
ACTORS = [(ROLLOUT, 0, 6), (REWARD, 6, 8)]

WORKLOADS = [
    {},
    {"placement": "disaggregated"},
    {"placement": "disaggregated", "train_s": 15.0, "reward_streamed": True},
    {"placement": "one-step-off"},
    {"placement": "one-step-off", "train_s": 7.0, "env_s": 0.2, "nodes": 3},
    {"placement": "async"},
    {"placement": "async", "train_s": 6.0},
    {"placement": "async", "train_s": 4.0, "sync_s": 2.0, "mixed": 0.3},
    {"reward_streamed": True, "spans": 60_000},
    {"placement": "async", "kill_step": 5, "torn": True},
]


@pytest.mark.parametrize("knobs", WORKLOADS, ids=str)
def test_every_second_of_every_step_is_where_the_truth_has_it(
    synthetic: Any, knobs: dict[str, Any]
) -> None:
    run, truth = synthetic(**knobs)
    found = breakdown_of(run)
    assert found.steps_s.tolist() == pytest.approx([step.step_s for step in truth.steps], abs=1e-6)
    for i, step in enumerate(truth.steps):
        tau_s = {word(s): found.tau_s[i, s] for s in Stage if found.tau_s[i, s]}
        exposed_s = {word(s): found.exposed_s[i, s] for s in Stage if found.exposed_s[i, s]}
        assert tau_s == pytest.approx(step.tau_s, abs=1e-6)
        expected = {name: seconds for name, seconds in step.exposed_s.items() if seconds}
        assert exposed_s == pytest.approx(expected, abs=1e-6)
        assert found.untraced_s[i] == pytest.approx(step.untraced_s, abs=1e-6)
        assert sum(exposed_s.values()) + found.untraced_s[i] == pytest.approx(step.step_s)


@pytest.mark.parametrize(
    ("processes", "tau_s", "exposed_s", "idle_s"),
    [
        pytest.param([[(ROLLOUT, 0, 4)], [(ROLLOUT, 2, 6)], [(ROLLOUT, 8, 9)]],
                     {"rollout": 7}, {"rollout": 7}, 3, id="processes in one stage are united"),
        pytest.param([[(ROLLOUT, 0, 6), (ROLLOUT, 1, 3), (ROLLOUT, 3, 5)]],
                     {"rollout": 6}, {"rollout": 6}, 4, id="nested spans of a stage count once"),
        pytest.param([[(ROLLOUT, 0, 8), (REWARD, 5, 7)]], {"rollout": 6, "reward": 2},
                     {"rollout": 6, "reward": 2}, 2, id="a stage within another takes its time"),
        # Two agents of one process: while both wait for tools, nothing is generated.
        pytest.param([[(ROLLOUT, 0, 8, 1), (ROLLOUT, 0, 8, 2), (ENV, 1, 7, 1), (ENV, 2, 7, 2)]],
                     {"rollout": 3, "env": 6}, {"rollout": 2, "env": 6}, 2, id="so do tools"),
        pytest.param([[(ROLLOUT, 0, 8)], [(REWARD, 5, 9)]], {"rollout": 8, "reward": 4},
                     {"rollout": 8, "reward": 1}, 1, id="one beside another is hidden"),
        pytest.param([ACTORS, [(TRAIN, 0, 3)]], {"rollout": 6, "reward": 2, "train": 3},
                     {"rollout": 6, "reward": 2}, 2, id="the longer chain hides the shorter"),
        # Reward alone shows that the actors are the longer chain, though rollout never is alone.
        pytest.param([ACTORS, [(TRAIN, 0, 7)]], {"rollout": 6, "reward": 2, "train": 7},
                     {"rollout": 6, "reward": 2}, 2, id="though it ends shortly after"),
        pytest.param([ACTORS, [(TRAIN, 0, 9.5)]], {"rollout": 6, "reward": 2, "train": 9.5},
                     {"train": 9.5}, 0.5, id="the shorter is hidden by the longer"),
        # Rollout never stops; alone for 0.1 s between two spans of training it does not bind.
        pytest.param([[(ROLLOUT, 0, 10)], [(TRAIN, 0, 5), (TRAIN, 5.1, 10)]],
                     {"rollout": 10, "train": 9.9}, {"train": 9.9, "rollout": 0.1}, 0,
                     id="a learner that never waits is charged"),
        pytest.param([[(ROLLOUT, 0, 8)], [(SYNC, 7, 9)]], {"rollout": 8, "sync": 2},
                     {"rollout": 8, "sync": 1}, 1, id="weights beside generation are hidden"),
        pytest.param([[(OTHER, 0, 6)], [(WAIT, 0, 8)], [(TRAIN, 2, 3)]],
                     {"other": 6, "wait": 8, "train": 1}, {"other": 5, "wait": 2, "train": 1}, 2,
                     id="wait and other yield to work"),
        pytest.param([[(OTHER, 0, 10), (ROLLOUT, 1, 4), (TRAIN, 4, 9)]],
                     {"other": 2, "rollout": 3, "train": 5}, {"other": 2, "rollout": 3, "train": 5},
                     0, id="a span around everything explains nothing"),
        pytest.param([[(TRAIN, 4, 4), (ROLLOUT, 0, 4)]], {"rollout": 4}, {"rollout": 4}, 6,
                     id="spans without length change nothing"),
        # An open span lasts until its process was last heard of.
        pytest.param([[(ROLLOUT, 0, -1), (ENV, 2, 3, 9), (ENV, 5, 6, 9)]],
                     {"rollout": 6, "env": 2}, {"rollout": 6}, 4, id="an open span"),
    ],
)  # fmt: skip
def test_a_moment_is_charged_to_one_stage(
    tmp_path: Path, processes: list[Any], tau_s: Any, exposed_s: Any, idle_s: float
) -> None:
    """Of a step of 10 s in which these processes did these things."""
    workers = [process("worker", *spans, rank=rank) for rank, spans in enumerate(processes)]
    found = breakdown_of(run_of(tmp_path, process("driver", (("step", 0), 0, 10)), *workers))
    for seconds, expected in ((found.tau_s, tau_s), (found.exposed_s, exposed_s)):
        by_name = {word(s): seconds[0, s] for s in Stage if seconds[0, s]}
        assert by_name == pytest.approx(expected, abs=1e-6)
    assert found.untraced_s[0] == pytest.approx(idle_s, abs=1e-6)


def test_spans_are_cut_at_the_edges_of_a_step(tmp_path: Path) -> None:
    driver = process("driver", (("step", 0), 1, 3), (("step", 1), 3, 7))
    found = breakdown_of(run_of(tmp_path, driver, process("worker", (ROLLOUT, 0, 5))))
    assert found.tau_s[:, ROLLOUT].tolist() == pytest.approx([2, 2])
    assert found.untraced_s.tolist() == pytest.approx([0, 2])
    # Structure beside work is no overlap of chains.
    driver = process("driver", (("step", 0), 0, 10), (OTHER, 0, 6))
    found = breakdown_of(run_of(tmp_path / "other", driver, process("rollout", (ROLLOUT, 0, 8))))
    assert found.chains_s(Chain.ACTORS, Chain.LEARNER).tolist() == [0]


def test_a_stage_without_spans_is_taken_from_its_table(tmp_path: Path) -> None:
    engine = process("rollout")
    rows(engine, "trajectories", start_s=[0, 1, 2], end_s=[3, 4, -1], trajectory=[1, 2, 3])
    run = run_of(tmp_path, process("driver", (("step", 0), 0, 6), (TRAIN, 4, 6)), engine)
    activity, found = read_activity(run), breakdown_of(run)
    assert activity.from_tables == (ROLLOUT,)
    assert found.tau_s[0, ROLLOUT] == pytest.approx(4)
    named = [row.name for row in stage_rows(activity, steps_of(run), found)]
    assert named == ["rollout", "train"]


def test_rows_leave_warmup_out(synthetic: Any) -> None:
    run, truth = synthetic(sigma=0.3)
    steps, found = steps_of(run), breakdown_of(run)
    assert [w.warmup for w in steps.windows] == [step.warmup for step in truth.steps]
    steady = [step for step in truth.steps if not step.warmup]
    by_name = {row.name: row for row in stage_rows(read_activity(run), steps, found)}
    for name in ("rollout", "reward", "reference", "logprob", "train", "sync", "switch"):
        row = by_name[name]
        mean = sum(step.tau_s[name] for step in steady) / len(steady)
        assert row.tau_s.n == len(steady)
        assert row.tau_s.mean == pytest.approx(mean, abs=1e-6)
        exposed = sum(step.exposed_s[name] for step in steady)
        assert row.share == pytest.approx(exposed / sum(step.step_s for step in steady))
        assert row.tau_s.low < mean < row.tau_s.high


SAMPLES = 4


def gathered(tools: list[tuple[float, float]], said: float = 1) -> Process:
    """Steps of 10 s. A span of generation of 8 s in one lane is around samples in lanes of their
    own, whose tools run from so many seconds of the step on; then 2 s of training. `said` over what
    the tools took is what the samples say of them (0: nothing)."""
    spans: list[tuple[Any, ...]] = []
    for n in range(STEPS):
        at = 10 * n
        spans += [(("step", n), at, at + 10), (Stage.ROLLOUT, at, at + 8)]
        spans += [(Stage.TRAIN, at + 8, at + 10)]
        spans += [(Stage.ENV, at + a, at + b, 10 + i) for i, (a, b) in enumerate(tools)]
    took = [b - a for a, b in tools] + [0.0] * SAMPLES
    return samples(process("driver", *spans), [8.0] * SAMPLES,
                   env_ns=lambda _, i: round(took[i] * 1e9 * said) or -1)  # fmt: skip


ALL, ALL_BUT_ONE = [(1.0, 7.0)] * SAMPLES, [(1.0, 7.0)] * (SAMPLES - 1)
IN_TOOLS = {"rollout": 2.0, "env": 6.0, "train": 2.0}
NEVER = {"rollout": 8.0, "train": 2.0}


@pytest.mark.parametrize(
    ("tools", "said", "others", "exposed_s", "tau_s"),
    [
        (ALL, 1, False, IN_TOOLS, (2.0, 6.0)),
        (ALL, 0, False, IN_TOOLS, (2.0, 6.0)),  # what samples say nothing of is theirs
        # All four are in their tools from 3 to 6 s: one is decoded for the rest of the time.
        ([*ALL_BUT_ONE, (3.0, 6.0)], 1, False, IN_TOOLS, (5.0, 6.0)),
        (ALL_BUT_ONE, 1, False, NEVER, (8.0, 6.0)),
        # Environments that are made ready for later samples run beside the decoding of these.
        ([(1.0, 1.5)] * SAMPLES, 1, True, NEVER, (8.0, 5.5)),
    ],
)  # fmt: skip
def test_while_all_samples_are_in_their_tools_nothing_is_generated(
    tmp_path: Path, tools: list[Any], said: float, others: bool, exposed_s: Any, tau_s: Any
) -> None:
    made, lanes = gathered(tools, said), range(20, 20 + SAMPLES * others)
    for n in range(STEPS):
        spans = [(Stage.ENV, 10 * n + 2, 10 * n + 7, lane) for lane in lanes]
        made.spans += process("", *spans).spans
    found = breakdown_of(run_of(tmp_path, made))
    exposed = {word(stage): found.exposed_s[0, stage] for stage in Stage}
    assert {name: s for name, s in exposed.items() if s} == pytest.approx(exposed_s)
    assert found.tau_s[0, [Stage.ROLLOUT, Stage.ENV]] == pytest.approx(tau_s)


@pytest.mark.parametrize(
    ("trained", "exposed_s", "train_s"),
    [
        ((10.0, 10.0), {"rollout": 3.0, "reward": 4.0, "train": 3.0}, 3.0),
        ((10.0, 8.0), {"rollout": 3.0, "reward": 1.0, "train": 6.0}, 6.0),  # no collective
        # Of two calls a step the second is one: others wait for 3 s between them.
        ((10.0, 10.0, 1.0), {"rollout": 3.0, "reward": 4.0, "train": 3.0}, 4.0),
    ],
)
def test_who_comes_last_to_a_collective_holds_up_the_others(
    tmp_path: Path, trained: tuple[float, ...], exposed_s: Any, train_s: float
) -> None:
    """Of four ranks one judges for 4 s, the others for 1 s. All end training, or one before.
    Before what they do together each trains for so many seconds by itself."""
    ranks = []
    for rank in range(4):
        judged, end = (7, trained[1]) if rank == 3 else (4, trained[0])
        alone = judged + sum(trained[2:])
        ranks.append(process("learner", rank=rank))
        for n in range(STEPS):
            at = 10 * n
            others = (
                (("step", n), at, at + 10),
                (ROLLOUT, at, at + 3),
                (REWARD, at + 3, at + judged),
            )
            ranks[-1].spans += process("", *others).spans
            for since, until in ((judged, alone), (alone, end))[judged == alone :]:
                ranks[-1].span(between(at + since, at + until), "train", TRAIN, n)
    found = breakdown_of(run_of(tmp_path, *ranks))
    exposed = {word(stage): found.exposed_s[1, stage] for stage in Stage}
    assert {name: s for name, s in exposed.items() if s} == pytest.approx(exposed_s)
    assert found.tau_s[1, TRAIN] == pytest.approx(train_s)


TRAINER, ENGINE, TOOLS = 0, 1, 2


def two_a_step() -> Process:
    """Steps of two samples, that end after 3 s."""
    return samples(job(rollout=3, train=7), [3.0, 3.0])


def judged(made: Process, after_s: float, missing: int = 0) -> Process:
    """Verdicts without a duration, so long after the begin of their step; the last ones missing."""
    places = [(n, i) for n in range(STEPS) for i in range(2)][: 2 * STEPS - missing]
    moments = [10 * n + after_s for n, _ in places]
    return rows(made, "rewards", start_s=moments, end_s=moments, value=1.0, outcome=0,
                trajectory=[1000 * n + i + 1 for n, i in places])  # fmt: skip


ALL_THE_TIME = [(Stage.REWARD, 0, 10 * STEPS)]
IN_TURN = [(Stage.REWARD, 10 * n + 3, 10 * n + 7) for n in range(STEPS)]
AFTER_IT = [(Stage.REWARD, 10 * n + 5, 10 * n + 9) for n in range(STEPS)]


@pytest.mark.parametrize(
    ("spans", "judged_s", "missing", "left_out"),
    [
        (ALL_THE_TIME, 7.0, 0, True),
        ([(Stage.REWARD, 0, -1), (Stage.WAIT, 10 * STEPS - 1, 10 * STEPS)], 7.0, 0, True),
        (IN_TURN, 7.0, 0, False),
        (AFTER_IT, 7.0, 0, False),
        (ALL_THE_TIME, 3.0, 0, False),  # verdicts that were put where the samples end
        (ALL_THE_TIME, 13.0, 0, False),  # some sample waits for its verdict at all times
        (ALL_THE_TIME, 7.0, STEPS, False),  # half of the samples say nothing
        ([], 7.0, 0, False),
    ],
    ids=["always", "open", "in-turn", "late", "at-once", "no-rest", "few-verdicts", "nothing"],
)
def test_who_is_in_a_stage_while_no_sample_waits_for_it_is_in_the_background(
    tmp_path: Path, spans: list[Any], judged_s: float, missing: int, left_out: bool
) -> None:
    driver = judged(two_a_step(), judged_s, missing)
    run = run_of(tmp_path, driver, process("verifier", *spans))
    (verifier,) = (p.number for p in run.processes if p.role == "verifier")
    activity = read_activity(run)
    assert activity.background == (((Stage.REWARD, verifier),) if left_out else ())
    assert activity.spans_of_stage.get(Stage.REWARD, 0) == (0 if left_out else len(spans))


def test_who_recorded_a_verdict_is_at_work_and_a_generator_may_not_be(tmp_path: Path) -> None:
    verifier = judged(process("verifier", *ALL_THE_TIME), 7.0)
    assert read_activity(run_of(tmp_path, two_a_step(), verifier)).background == ()
    other = process("other", (Stage.ROLLOUT, 0, 10 * STEPS))
    activity = read_activity(run_of(tmp_path / "other", two_a_step(), other))
    assert [stage for stage, _ in activity.background] == [Stage.ROLLOUT]


def test_what_an_evaluation_generates_is_its_own(tmp_path: Path) -> None:
    """In a lane of its own, or among others, and however deep."""
    spans = [(("step", 0), 0, 20), (ROLLOUT, 0, 6), (TRAIN, 6, 10), (Stage.EVAL, 10, 20)]
    inner = [(ROLLOUT, 11, 18), (REWARD, 12, 13)]
    found = breakdown_of(run_of(tmp_path, process("trainer", *spans, *inner)))
    tau_s = {stage: found.tau_s[0, stage] for stage in (ROLLOUT, REWARD, TRAIN, Stage.EVAL)}
    assert tau_s == pytest.approx({ROLLOUT: 6, REWARD: 0, TRAIN: 4, Stage.EVAL: 10})
