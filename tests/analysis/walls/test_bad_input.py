"""What a trace does not tell is said, and no wall is named on it."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rltrace.testing.handmade_runs import at, process, rows, run_of, stating
from rltrace.testing.inside.analysis import (
    ENV_REWARD,
    FRESHNESS,
    LEARNER,
    OBSERVABILITY,
    ROLLOUT,
    SPARSE_REWARD,
    TAIL,
    WEIGHTS,
    ranked,
    summarize,
    wall_names,
    workload_of,
)
from rltrace.testing.inside.report import plain, terminal
from rltrace.testing.inside.trace import RltraceError, Stage
from rltrace.testing.run_files import Process
from tests.analysis.walls.walled import (
    STEPS,
    first,
    in_steps,
    job,
    samples,
    summary_of,
    uses,
    verdicts,
    walls_of,
)

LONG = [2.0, 3.0, 4.0, 8.0]


def engine(**columns: Any) -> Process:
    """Four samples a step, each with a verdict."""
    return verdicts(samples(process("rollout"), LONG, **columns), 4, lambda n, i: i % 2)


def moved(by_s: float) -> Process:
    """Generation that another node's clock puts elsewhere."""
    return process("rollout", *in_steps(10, (Stage.ROLLOUT, by_s, 8 + by_s)))


def backwards(*stages: Any) -> Process:
    """Spans that end before they begin."""
    return process("rollout", *in_steps(10, *((stage, 8, 0) for stage in stages)))


def alone(*spans: tuple[Any, float, float]) -> Process:
    """One process with these spans in each step of 10 s."""
    return process("driver", *in_steps(10, (("step", 0), 0, 10), *spans))


def ended_before() -> Process:
    """Samples that end before they begin, as where clocks of two nodes are out of order."""
    end = [10 * n + 4 for n in range(STEPS)]
    ids = list(range(1, STEPS + 1))
    return rows(process("rollout"), "trajectories", start_s=[at + 1 for at in end], end_s=end,
                trajectory=ids)  # fmt: skip


BEGUN = (("step", 0), 0, -1)
FAILS = [(("step", n), 10 * n, -1) for n in range(STEPS)]
TURNS = job(rollout=8, train=2)
STEP_S = {ROLLOUT: "spans of stage step"}


@pytest.mark.parametrize(
    ("processes", "meta", "binds", "unknown", "says"),
    [
        pytest.param(
            [TURNS, uses(engine(first_version=-1, last_version=-1), 4, version=-1)],
            {}, ROLLOUT, {FRESHNESS: "the policy version of each sample"}, (), id="no versions",
        ),
        pytest.param(
            [TURNS], {}, ROLLOUT,
            {TAIL: "each trajectory's begin and end", SPARSE_REWARD: "the group of each sample",
             FRESHNESS: "the policy version", OBSERVABILITY: "a hook where an episode ends"},
            (), id="no trajectories",
        ),
        pytest.param([TURNS, ended_before()], {}, ROLLOUT, {TAIL: ""}, (), id="samples backwards"),
        pytest.param(
            [job(rollout=8), engine()], {}, ROLLOUT,
            {LEARNER: "logprob, value, train", WEIGHTS: "spans of stage sync",
             ENV_REWARD: "spans of stage env"},
            (), id="no training seen",
        ),
        pytest.param(
            [alone((Stage.TRAIN, 7, 10))], {}, "", {ROLLOUT: "doctor"},
            ("70 % of the step is untraced", ROLLOUT), id="no generation seen",
        ),
        pytest.param(
            [alone((Stage.WAIT, 0, 7), (Stage.TRAIN, 7, 10))], {}, "",
            {ROLLOUT: "spans of stage rollout"}, ("70 % of the step is wait", "a poll"),
            id="a learner that waits for who was not seen",
        ),
        pytest.param([job(train=2), moved(-1000)], {}, "", {ROLLOUT: "clocks out of order"},
                     (), id="generation before the job"),
        pytest.param([job(train=2), backwards(Stage.ROLLOUT)], {}, "",
                     {ROLLOUT: "clocks out of order"}, (), id="generation backwards"),
        pytest.param([backwards(("step", 0), Stage.ROLLOUT)], {}, "", STEP_S,
                     ("rltrace.step(n)",), id="steps backwards"),
        pytest.param(
            [process("driver", (("step", 0), 0, 10), (Stage.ROLLOUT, 0, 8))], {}, "",
            {FRESHNESS: "the policy version"}, ("1 steady step", "more steps"), id="one step",
        ),
        pytest.param([process("driver", (Stage.ROLLOUT, 0, 6), (Stage.TRAIN, 6, 8))], {}, "",
                     STEP_S, ("--hook module:function=step", "rltrace.step(n)"), id="no steps"),
        pytest.param(
            [process("driver", BEGUN, (Stage.ROLLOUT, 0, 5))],
            {"exit_code": 3, "end_real_ns": at(6)}, "", STEP_S, ("no complete step",),
            id="died in its first step",
        ),
        pytest.param(
            [process("driver", BEGUN, (Stage.ROLLOUT, 1, -1))],
            {"exit_code": None, "end_real_ns": at(600)}, "", STEP_S, (),
            id="stuck in its first step",
        ),
        pytest.param([process("driver", *FAILS, (Stage.ROLLOUT, 0, 5))], {}, "", STEP_S,
                     ("no complete step", "why that step does not end"), id="every step failed"),
        pytest.param([], {}, "", dict.fromkeys(wall_names(), ""), ("no Python", "doctor"),
                     id="nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_said_and_nothing_else_is_claimed(
    tmp_path: Path,
    processes: list[Process],
    meta: dict[str, Any],
    binds: str,
    unknown: dict[str, str],
    says: tuple[str, ...],
) -> None:
    """And neither the report nor a what-if of it ends in anything but an answer."""
    run = run_of(tmp_path, *processes, **meta)
    found = summarize(run)
    verdict = found.verdict
    assert first(found) == binds
    assert {wall.name for wall in verdict.walls} == set(wall_names())
    for name, word in unknown.items():
        wall = walls_of(found)[name]
        assert (wall.confidence, wall.cost.known) == ("cannot tell", False)
        assert word in " ".join(wall.missing)
    told = " ".join((verdict.because, *verdict.would_tell))
    assert all(word in told for word in says), told
    if not binds:
        assert verdict.confidence == "cannot tell"
        assert not verdict.balanced
        assert verdict.because
        assert verdict.would_tell
        assert verdict.fixes == ()
        # Else it has said what a step is.
        assert ("rltrace.step(n)" in told) == ("rltrace.step(n)" in says)
    assert "Infinity" not in json.dumps(plain(found))
    terminal.render(found, Console(file=io.StringIO(), width=100))
    with contextlib.suppress(RltraceError):
        ranked(workload_of(run))


def test_a_log_of_durations_does_not_tell_what_ran_at_once(tmp_path: Path) -> None:
    log = {"trainer": "verl", "kind": "metrics"}
    found = summary_of(tmp_path, job(rollout=8, train=2), imported=log, predict=True).verdict
    assert found.first is not None
    assert (found.first.name, found.confidence) == (ROLLOUT, "weak")
    assert "what ran at once" in " ".join(found.would_tell)


def test_hooks_are_asked_after_where_a_run_without_stages_had_any(tmp_path: Path) -> None:
    log = {"trainer": "", "kind": "console log"}
    own_loop = stating(run_of(tmp_path / "a", process("driver")), {"adapter": ""})
    traced = summarize(own_loop).verdict
    untraced = summary_of(tmp_path / "c", predict=True).verdict
    imported = summary_of(tmp_path / "b", imported=log, predict=True).verdict
    assert traced.because == imported.because == "no stage was seen"
    assert untraced.because == "no Python process was traced"
    assert "--hook" in " ".join(traced.would_tell)
    assert "--hook" not in " ".join(untraced.would_tell)
    assert "--hook" not in " ".join(imported.would_tell)


@pytest.mark.parametrize("begun", [False, True])
def test_a_framework_that_has_ended_no_step_is_not_hooked(tmp_path: Path, begun: bool) -> None:
    driver = process("driver", *[(("step", 0), 0, -1)] * begun)
    run = stating(run_of(tmp_path, driver), {"adapter": "verl"})
    found = summarize(run, predict=False).verdict
    assert found.because != "no stage was seen"
    assert ("step 0" in found.because) == begun != ("verl" in found.because)
    assert "--hook" not in " ".join(found.would_tell)
