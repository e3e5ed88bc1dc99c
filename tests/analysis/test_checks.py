"""Anti-patterns and the readiness checklist: found, not found, or what would tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.readiness import Control
from rltrace.testing.inside.analysis import Lint, Summary
from rltrace.testing.inside.trace import Finish, Outcome, Stage
from rltrace.testing.made import process, rows
from tests.analysis.walls.walled import STEPS, job, samples, summary_of, uses, verdicts

EACH = 40


def lints(found: Summary) -> dict[str, Lint]:
    return {one.name: one for one in found.verdict.lints}


def controls(found: Summary) -> dict[str, Control]:
    return {one.name: one for one in found.verdict.controls}


def run_with(path: Path, of_use: dict[str, Any] | None = None, **of_sample: Any) -> Summary:
    rollout = samples(process("rollout"), [4.0] * EACH, **of_sample)
    learner = uses(process("learner"), EACH, **(of_use or {}))
    placement = of_sample.pop("placement", "async")
    return summary_of(
        path, job(rollout=4, train=6), rollout, learner, settings={"placement": placement}
    )


def test_an_empty_run_can_tell_nothing(tmp_path: Path) -> None:
    found = summary_of(tmp_path)
    assert [one.verdict for one in found.verdict.lints] == ["cannot tell"] * 6
    verdicts_of = {one.name: one.verdict for one in found.verdict.controls}
    assert set(verdicts_of.values()) == {"cannot tell", "not seen"}


def test_stages_that_are_not_measured_apart(tmp_path: Path) -> None:
    lint = lints(summary_of(tmp_path, job(train=10)))
    first = lint["picking a framework before measuring the rollout wall"]
    assert (first.verdict, first.says) == ("cannot tell", "not measured apart: rollout, sync")


@pytest.mark.parametrize(
    ("version", "expected"), [(-1, "found"), (3, "not found")], ids=["unknown", "known"]
)
def test_async_without_versions(tmp_path: Path, version: int, expected: str) -> None:
    found = run_with(tmp_path, first_version=version)
    assert lints(found)["asynchronous training without policy versions"].verdict == expected


def dropped(path: Path, long: bool) -> Summary:
    """40 samples of each step are trained on, and 10 more of it vanish."""
    tail = [8.0 if long else 4.0] * 10
    rollout = samples(process("rollout"), [4.0] * EACH + tail, finish=int(Finish.ABORT))
    return summary_of(path, job(rollout=8, train=2), rollout, uses(process("learner"), EACH))


def test_long_samples_that_vanish_are_found(tmp_path: Path) -> None:
    name = "dropping long samples silently"
    long = lints(dropped(tmp_path / "long", True))[name]
    assert long.verdict == "found"
    assert "20 % of the samples vanish" in long.says
    assert "800 tokens long in the mean, the others 400" in long.says
    assert lints(dropped(tmp_path / "alike", False))[name].verdict == "not found"


@pytest.mark.parametrize(
    ("kept", "expected"), [(0, "found"), (1, "not found"), (-1, "cannot tell")]
)
def test_token_ids_made_anew(tmp_path: Path, kept: int, expected: str) -> None:
    found = run_with(tmp_path, token_ids=kept, logprobs=kept)
    assert lints(found)["making token ids anew from text"].verdict == expected


def test_failures_that_stick_to_one_environment(tmp_path: Path) -> None:
    name = "environments without isolation"

    def finish(_: int, i: int) -> int:
        return int(Finish.ERROR) if i % 8 == 0 else int(Finish.STOP)

    one = run_with(tmp_path / "one", environment=lambda _, i: i % 8, finish=finish)
    assert lints(one)[name].verdict == "found"
    all_alike = run_with(tmp_path / "all", environment=lambda _, i: i // 8, finish=finish)
    assert lints(all_alike)[name].verdict == "not found"


def test_reward_workers_that_fail_alike_are_no_lack_of_isolation(tmp_path: Path) -> None:
    made = []
    for rank in range(2):
        worker = process("reward", rank=rank)
        n = 60
        rows(worker, "rewards", start_s=[1.0] * n, end_s=[2.0] * n, value=[0.0] * n,
             trajectory=list(range(rank * n + 1, rank * n + n + 1)),
             outcome=[int(Outcome.ERROR) if i % 10 == 0 else 0 for i in range(n)])  # fmt: skip
        made.append(worker)
    found = summary_of(tmp_path, job(rollout=4, train=6), *made)
    lint = lints(found)["environments without isolation"]
    assert (lint.verdict, lint.says) == (
        "not found",
        "12 of 120 failed, nowhere more than by chance",
    )


def test_controls_that_were_seen(tmp_path: Path) -> None:
    rollout = samples(process("rollout"), [4.0] * EACH, token_ids=1, logprobs=1)
    learner = uses(process("learner"), EACH)
    rows(learner, "syncs", start_s=[10 * n + 9.0 for n in range(STEPS)],
         end_s=[10 * n + 10.0 for n in range(STEPS)], version=list(range(STEPS)))  # fmt: skip
    judged = verdicts(process("reward", (Stage.REWARD, 0, 1)), EACH, lambda _, i: i)
    found = summary_of(tmp_path, job(rollout=4, train=5, sync=1), rollout, learner, judged)
    seen = {name: one.verdict for name, one in controls(found).items()}
    assert seen == {
        "versioned weights": "seen",
        "replayable trajectories": "seen",
        "role-level utilisation": "seen",
        "freshness limit": "seen",
        "tail controls": "cannot tell",
        "weight movement by phase": "not seen",
        "reward audits": "not seen",
    }


def test_tail_controls_say_what_happened_to_how_many_samples(tmp_path: Path) -> None:
    ended = {(0, 1): Finish.TIMEOUT, **{(n, 0): Finish.LENGTH for n in range(STEPS)}}
    rollout = samples(
        process("rollout"),
        [4.0] * EACH,
        finish=lambda n, i: int(ended.get((n, i), Finish.STOP)),
    )
    found = controls(summary_of(tmp_path, job(rollout=4, train=6), rollout))["tail controls"]
    assert found.verdict == "seen"
    assert found.says == f"1 sample timed out, {STEPS} samples ended at the length cap"


def test_lost_log_probs_are_not_replayable(tmp_path: Path) -> None:
    found = controls(run_with(tmp_path, token_ids=1, logprobs=0))["replayable trajectories"]
    assert (found.verdict, found.says) == ("not seen", "not kept of all samples: log-probs")


@pytest.mark.parametrize(
    ("size_bytes", "expected"), [(10**6, "not found"), (4 * 10**9, "found")], ids=["few", "many"]
)
def test_a_reload_is_naive_only_where_its_bytes_take_the_time(
    tmp_path: Path, size_bytes: int, expected: str
) -> None:
    """Updates of 6 s of a step of 10."""
    learner = job(rollout=2, train=2, sync=6)
    starts = [10.0 * n + 4 for n in range(STEPS)]
    rows(learner, "syncs", start_s=starts, end_s=[s + 6 for s in starts], role=[0] * STEPS,
         version=list(range(STEPS)), bytes=[size_bytes] * STEPS)  # fmt: skip
    found = lints(summary_of(tmp_path, samples(learner, [2.0] * 4)))
    lint = found["naive full reload of the weights at each update"]
    assert lint.verdict == expected
    assert ("little for a link" in lint.says) == (expected == "not found")
