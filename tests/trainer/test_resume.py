"""Checkpoints: a run that was killed as a whole goes on from its file, and what is no file is said
so in a sentence."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rltrace.testing.inside.trainer import Checkpoint, Learner, Unreadable, initial_weights
from rltrace.trainer import Ledger, StepRecord, TrainerConfig, TrainerError, train
from tests.hooks.conftest import clean_environment
from tests.patience import PATIENCE_S
from tests.trainer.conftest import SMALL
from tests.trainer.test_faults import folders
from tests.trainer.test_learner import same, samples, weights

pytestmark = pytest.mark.slow

PY = sys.executable
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "train.py")


@pytest.fixture
def kept(tmp_path: Path) -> TrainerConfig:
    """Settings of a run that keeps a checkpoint every other step."""
    return dataclasses.replace(SMALL, checkpoint=str(tmp_path / "run.pt"), checkpoint_every=2)


def facts(record: StepRecord) -> dict[str, Any]:
    """What a step did. Numbers are as near as they are when sequences are batched otherwise; what
    workers read, and when, is no part of it."""
    known = {**dataclasses.asdict(record), "seconds": 0.0, "sync_bytes": 0}
    near = {name: _near(value) for name, value in known.items() if isinstance(value, float)}
    return known | near | {"ratios": {lag: _near(one) for lag, one in known["ratios"].items()}}


def _near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-3, abs=1e-5)


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
    assert [dataclasses.asdict(r) | {"seconds": 0.0, "sync_bytes": 0} for r in rest.steps] == [
        facts(record) for record in whole.steps[4:]
    ]


def test_weights_and_optimizer_come_back_bit_by_bit(kept: TrainerConfig) -> None:
    def learner() -> Learner:
        return Learner(kept, 0, initial_weights(kept))

    batch = samples(kept, [1.0, -0.5, -1.0, 0.25, 0.5])
    first, second = learner(), learner()
    first.train(0, batch)
    Checkpoint(kept).save(1, 0, first.state())
    second.restore(Checkpoint(dataclasses.replace(kept, resume=True)).state, 0)
    assert same(weights(first), weights(second))
    first.train(1, batch)
    second.train(1, batch)
    assert same(weights(first), weights(second))
    assert not same(weights(first), weights(learner()))


def test_a_job_that_was_killed_resumes_and_makes_all_its_steps(tmp_path: Path) -> None:
    job = [PY, EXAMPLE, "--steps", "12", "--prompts", "4", "--samples", "4", "--layers", "2"]
    job += ["--heads", "2", "--model-size", "0.03", "--placement", "async", "--max-lag", "2"]
    job += ["--update-floor", "0.05", "--checkpoint-every", "3"]
    job += ["--checkpoint", str(tmp_path / "run.pt"), "--ledger", str(tmp_path / "ledger.json")]
    environment = clean_environment(RAY_memory_monitor_refresh_ms="0", PYTHONUNBUFFERED="1")
    first = subprocess.Popen(
        job, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("step   7"):
            break
    left = folders(first.pid)
    first.kill()
    first.wait()
    for folder in left:  # nobody else can: the job had no time to
        shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(
        [*job, "--resume"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
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


def test_a_place_that_takes_no_checkpoint_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "no" / "x", "No such file or dir")):
        done = subprocess.run(
            [PY, EXAMPLE, "--checkpoint", str(path)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 2
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith(f"Error: no checkpoint can be kept in {path}: {why}")
        assert "Ray" not in done.stderr
    done = subprocess.run(
        [PY, EXAMPLE, "--checkpoint", str(tmp_path / "x"), "--resume"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 4
    assert list(tmp_path.iterdir()) == []
