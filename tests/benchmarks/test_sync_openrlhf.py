"""What the benchmarks of frameworks' updates read from traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import sync_openrlhf, sync_updates
from benchmarks.measuring import Result
from rltrace.testing.inside.trace import Stage, SyncRole
from rltrace.testing.made import between, process, rows, run_of
from tests.openrlhf.jobs import JOBS, Finished


def job(folder: Path, update_s: float, size: int, calls: int) -> Finished:
    """A job of three updates, the first of which takes ten times as long."""
    policy = process("learner")
    took = [10 * update_s, update_s, update_s]
    for number, seconds in enumerate(took):
        policy.span(
            between(10 * number, 10 * number + seconds),
            "ActorPPOTrainer.broadcast_to_vllm",
            Stage.SYNC,
            -1,
        )
    rows(
        policy,
        "syncs",
        start_s=[0, 10, 20],
        end_s=[10 * n + seconds for n, seconds in enumerate(took)],
        version=[1, 2, 3],
        role=[int(SyncRole.SOURCE)] * 3,
        bytes=[size] * 3,
        wire_bytes=[size if calls == 1 else -1] * 3,  # not known of calls for each tensor
    )
    run_of(folder, policy)
    (folder / "stamps").mkdir()
    stamps = [json.dumps({"start_ns": n}) for n in range(3 * calls)]
    (folder / "stamps" / "update-1.jsonl").write_text("\n".join(stamps))
    return Finished(replace(JOBS["sync"], steps=3), folder)


@pytest.mark.parametrize(("ours_s", "size", "held"), [(0.01, 100, [1, 1]), (0.2, 101, [0, 0])])
def test_updates_after_the_first_are_held_to_those_of_openrlhf(
    tmp_path: Path, ours_s: float, size: int, held: list[int]
) -> None:
    own, ours = tmp_path / "own", tmp_path / "ours"
    for folder in (own, ours):
        folder.mkdir()
    done = {
        sync_openrlhf.OWN: [job(own, 0.1, 100, calls=27)],
        sync_updates.OURS: [job(ours, ours_s, size, calls=1)],
    }
    result = Result("", "ms")
    sync_openrlhf.judged(done, result)
    medians = [row.median for row in result.rows.values()]
    assert medians == pytest.approx([100, 1000 * ours_s])
    assert [check.holds for check in result.checks] == held
    assert [note.split(" and ")[1] for note in result.notes.values()] == [
        "27 calls to an engine",
        "1 calls to an engine",
    ]


def test_where_nobody_has_the_framework_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sync_updates, "python_of", lambda framework: None)
    monkeypatch.setattr(sync_updates, "find_spec", lambda framework: None)
    with pytest.raises(SystemExit) as ended:
        sync_updates.by_the_python_of("openrlhf", "OpenRLHF", "benchmarks.sync_openrlhf")
    assert ended.value.code == 0
    assert "`make test-openrlhf` installs it" in capsys.readouterr().out
