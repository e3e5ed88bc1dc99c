"""Checkpoints: a run that was killed as a whole goes on from its file, and what is no file is said
so in a sentence."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from rltrace.testing.inside.trainer import Checkpoint, Unreadable
from rltrace.trainer import Ledger, StepRecord, TrainerConfig, TrainerError, run, train
from tests.hooks.conftest import untraced
from tests.trainer.conftest import SMALL
from tests.trainer.test_faults import SMALL_EXAMPLE, folders, started
from tests.trainer.test_placement import training

pytestmark = pytest.mark.slow


@pytest.fixture
def kept(tmp_path: Path) -> TrainerConfig:
    """Settings of a run that keeps a checkpoint every other step."""
    return dataclasses.replace(SMALL, checkpoint=str(tmp_path / "run.pt"), checkpoint_every=2)


@pytest.mark.usefixtures("cluster")
def test_a_resumed_run_makes_exactly_the_steps_that_were_left(
    kept: TrainerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    early = f"{kept.checkpoint}.early"

    def copy(record: StepRecord) -> None:
        if record.step == 3:
            shutil.copy(kept.checkpoint, early)

    whole = train(dataclasses.replace(kept, steps=6), on_step=copy)
    rest = train(dataclasses.replace(kept, steps=6, checkpoint=early, resume=True))
    assert caplog.messages == [f"goes on from step 4, of {early}"]
    assert [record.step for record in rest.steps] == [4, 5]
    assert [record.version for record in rest.steps] == [4, 5]
    assert training(rest) == training(whole)[4:]


def test_a_job_that_was_killed_resumes_and_makes_all_its_steps(tmp_path: Path) -> None:
    job = ["--steps", "12", "--placement", "async", "--max-lag", "2", "--update-floor", "0.05"]
    job += ["--checkpoint", str(tmp_path / "run.pt"), "--checkpoint-every", "3"]
    job += ["--ledger", str(tmp_path / "ledger.json")]
    first = started(*job, until="step   7")
    left = folders(first.pid)
    first.kill()
    first.wait()
    for folder in left:  # nobody else can: the job had no time to
        shutil.rmtree(folder, ignore_errors=True)
    again = (sys.executable, *SMALL_EXAMPLE, *job, "--resume")
    done = untraced(*again, RAY_memory_monitor_refresh_ms="0")
    assert done.returncode == 0, done.stderr
    steps = json.loads((tmp_path / "ledger.json").read_text())["steps"]
    assert [step["step"] for step in steps] in ([6, 7, 8, 9, 10, 11], [9, 10, 11])
    assert [step["version"] for step in steps] == [step["step"] for step in steps]


@pytest.mark.usefixtures("cluster")
def test_a_full_disk_is_an_event_and_the_last_whole_checkpoint_stays(
    kept: TrainerConfig,
) -> None:
    path = Path(kept.checkpoint)

    def fill(record: StepRecord) -> None:
        if record.step == 2:  # one checkpoint was written
            Path(f"{path}.partial").symlink_to("/dev/full")

    ledger: Ledger = train(dataclasses.replace(kept, steps=5), on_step=fill)
    assert len(ledger.steps) == 5
    assert ledger.events[0] == (
        "the checkpoint before step 4 is not in its file: No space left on device"
    )
    assert not Path(f"{path}.partial").is_symlink()


def test_what_is_no_checkpoint_is_refused_in_a_sentence(kept: TrainerConfig) -> None:
    path = Path(kept.checkpoint)
    resumed = dataclasses.replace(kept, resume=True)
    with pytest.raises(
        Unreadable, match=rf"^cannot resume from {path}: No such file or directory$"
    ):
        Checkpoint(resumed)
    state = {"model": {"weight": torch.randn(200, 3)}, "optimizer": {"state": {}}}
    Checkpoint(kept).save(2, 1, state)
    whole = path.read_bytes()
    assert torch.equal(Checkpoint(resumed).state["model"]["weight"], state["model"]["weight"])
    torn = [whole[: len(whole) * share // 20] for share in range(20)]
    other = {"step": "two", "version": 1, "state": None, "settings": []}
    torch.save(other, path)
    foreign = [path.read_bytes(), b"{}", b"PK\3\4", os.urandom(3000), b"\x80\x04N."]
    for content in (*torn, *foreign):
        path.write_bytes(content)
        with pytest.raises(Unreadable, match=rf"^cannot resume from {path}: it is no whole check"):
            Checkpoint(resumed)


def test_a_checkpoint_of_other_settings_is_refused(kept: TrainerConfig) -> None:
    Checkpoint(kept).save(2, 1, {"model": {}, "optimizer": {}})
    longer = dataclasses.replace(kept, steps=90, placement="async", resume=True)
    assert Checkpoint(longer).step == 2
    free = {"timeout": 9.0, "max_running": 3, "decode_floor": 0.1, "env_failure_rate": 0.5}
    free |= {"update_floor": 0.1, "env_tail": 1.0, "partial_rollout": False}
    assert Checkpoint(dataclasses.replace(longer, **free)).step == 2
    with pytest.raises(TrainerError, match=r"of a run with another retokenize: resume with the"):
        Checkpoint(dataclasses.replace(longer, retokenize=True))
    with pytest.raises(TrainerError, match=r"of a run with another seed, layers: resume with the"):
        Checkpoint(dataclasses.replace(longer, seed=1, layers=3))


@pytest.mark.parametrize(
    ("place", "why"), [(".", "Is a directory"), ("no/x", "No such file or directory")]
)
def test_a_place_that_takes_no_checkpoint_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, why: str
) -> None:
    monkeypatch.setattr(run, "ray_session", None)
    path = tmp_path / place
    with pytest.raises(TrainerError, match=f"^no checkpoint can be kept in {path}: {why}$"):
        train(dataclasses.replace(SMALL, checkpoint=str(path)))
    with pytest.raises(Unreadable):
        train(dataclasses.replace(SMALL, checkpoint=str(tmp_path / "x"), resume=True))
    assert list(tmp_path.iterdir()) == []
