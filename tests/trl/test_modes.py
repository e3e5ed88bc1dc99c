"""Ways to run TRL that differ in what is one training and what is none: a trace counts as TRL does,
and its figures are of the training that they are said to be of."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.analysis import StepSelection, Summary, narrow, summarize
from tests.framework_jobs import PLUGIN, fixtures_of, free_port
from tests.trl.jobs import EACH, JOB, Finished, make_assets

_MODES = JOB.with_name("modes.py")
_LINE = """
{bin}/trl grpo --model_name_or_path {model} --dataset_name {out}/data
--reward_funcs rewards.identity --output_dir {out} --max_steps 3 --per_device_train_batch_size 4
--gradient_accumulation_steps 2 --num_generations 4 --max_completion_length 12 --logging_steps 1
--report_to none --save_strategy no --use_cpu true --bf16 false --disable_tqdm true
"""


@dataclass(frozen=True)
class Mode:
    """What a shell runs (`{job}` is the script with its model and folder), and the version of TRL
    whose sources it imports (empty: what is installed)."""

    line: str
    version: str = ""


_OLDER = '"$PYTHON" {job} max_steps=3'
MODES = {
    "after": Mode('"$PYTHON" {after} max_steps=4'),
    "kto": Mode('"$PYTHON" {kto} max_steps=4'),
    "again": Mode(
        '"$PYTHON" {job} max_steps=4 save_strategy=steps save_steps=2 && '
        '"$PYTHON" {job} max_steps=6 resume={out}/checkpoint-2'
    ),
    "torchrun": Mode(
        '"$PYTHON" -m torch.distributed.run --nproc_per_node 2 --master_port {port} {job} '
        "max_steps=6 steps_per_generation=4"
    ),
    "command": Mode(" ".join(_LINE.split())),
    "1.9.0": Mode(_OLDER, "1.9.0"),
    "1.0.0": Mode(_OLDER, "1.0.0"),
}


def train(mode: Mode, assets: Path, folder: Path, traced: bool = True) -> Finished:
    out, model = folder / "out", assets / "model"
    (out / "data").mkdir(parents=True)
    rows = [{"prompt": f"{a}+{a * 7 % 90}="} for a in range(10, 74)]
    (out / "data/train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    paths = [str(PLUGIN), str(JOB.parent)]
    if mode.version:
        paths.insert(0, f"{os.environ['RLTRACE_TRL_SOURCES']}/{mode.version}")
    line = mode.line.format(
        job=f"{_MODES} grpo {model} {out}",
        after=f"{_MODES} after {model} {out}",
        kto=f"{_MODES} kto {model} {out}",
        out=out,
        model=model,
        port=free_port(),
        bin=Path(sys.executable).parent,
    )
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    environment = {"PYTHONPATH": os.pathsep.join(paths), "PYTHON": sys.executable, **offline}
    return Finished.of(mode, folder, ["sh", "-c", line], traced, **environment)


assets, finished, _ = fixtures_of(MODES, ("after",), make_assets, train)
Jobs = Callable[[str], Finished]


def of(job: Finished, phase: int | None = None) -> Summary:
    run = rltrace.open_run(job.folder / "run")
    narrow(run, StepSelection(phase=phase))
    return summarize(run)


def logged(job: Finished, figure: str) -> list[dict[str, Any]]:
    """TRL's own lines that have a figure, in the order of the steps."""
    lines = json.loads((job.folder / "out/log.json").read_text())["log_history"]
    return [line for line in lines if figure in line]


def test_supervised_fine_tuning_and_what_follows_it_are_two_phases(finished: Jobs) -> None:
    job = finished("after")
    assert job.problems == []
    first, last = of(job, 1), of(job)
    assert [one.steps for one in last.steps.phases] == [3, 4]
    assert (first.run.phase, last.run.phase) == (1, 2)
    assert first.run.no_rollout == "supervised fine-tuning"
    assert (first.verdict.walls, first.goodput, first.reward) == ((), None, None)
    assert {"train", "eval"} <= {row.name for row in first.stages}
    assert last.run.no_rollout == ""
    assert {(one.kind, one.forbids) for one in last.health.alarms} <= {("truncated", False)}
    numbers = [line["step"] for line in logged(job, "reward")]
    assert [time.step for time in last.steps.times] == numbers == [1, 2, 3, 4]


def test_a_trainer_that_generates_nothing_is_named_and_has_no_wall_of_rl(finished: Jobs) -> None:
    job = finished("kto")
    assert job.problems == []
    found = of(job)
    assert found.run.no_rollout == "KTO"
    assert [time.step for time in found.steps.times] == [1, 2, 3, 4]
    assert [line["step"] for line in logged(job, "loss")] == [1, 2, 3, 4]
    assert (found.verdict.walls, found.verdict.fixes, found.goodput) == ((), (), None)
    stages = {row.name for row in found.stages}
    assert "train" in stages
    assert not stages & {"rollout", "reward"}


def test_an_evaluation_is_in_no_figure_of_training(finished: Jobs) -> None:
    job = finished("after")
    found = of(job)
    assert found.goodput is not None
    assert found.signal is not None
    assert found.goodput.generated_samples == found.goodput.trained.samples == 8 * 4
    assert found.signal.groups == 8
    assert found.tail.latency_s.n == 8 * 4
    stamps = job.stamps("evaluation")
    assert len(stamps) == 3
    for stamp in stamps:
        within = f"start_ns BETWEEN {stamp['start_ns']} AND {stamp['end_ns']}"
        stages = set(job.rows(f"SELECT DISTINCT stage FROM spans WHERE {within}"))
        assert not stages & {"rollout", "reward", "reference", "logprob", "train"}
        for table in ("trajectories", "rewards", "uses"):
            start = "time_ns" if table == "uses" else "start_ns"
            said = within.replace("start_ns", start, 1)
            assert job.rows(f"SELECT count(*) FROM {table} WHERE {said}") == [0]
    for line in logged(job, "reward"):
        query = "SELECT avg(reward) FROM sample_rewards JOIN uses USING (trajectory) WHERE step = "
        assert job.rows(f"{query}{line['step']}") == [pytest.approx(line["reward"], rel=1e-5)]


def test_a_trainer_that_goes_on_from_a_checkpoint_is_no_phase(finished: Jobs) -> None:
    found = of(finished("again"))
    assert [one.steps for one in found.steps.phases] == [6]
    assert [time.step for time in found.steps.times] == [1, 2, 3, 4, 3, 4, 5, 6]
    assert (found.run.phase, found.steps.repeated) == (0, 2)
    assert found.verdict.alarms


def test_a_batch_of_all_ranks_is_of_the_steps_that_use_it(finished: Jobs) -> None:
    job = finished("torchrun")
    found = of(job)
    assert found.goodput is not None
    assert found.tail.slots is not None
    assert found.steps.steps_per_generation == 2
    generated = found.goodput.generated_samples
    assert generated == found.goodput.trained.samples == 6 * 8 * 2
    batches = job.rows("SELECT count(*) FROM trajectories GROUP BY first_version ORDER BY 1")
    assert batches == [4 * 8] * 3  # TRL's own count, of two ranks
    assert found.tail.slots.batches == 3
    assert found.tail.slots.samples.mean == 4 * 8


@pytest.mark.parametrize("name", ["command", "1.9.0", "1.0.0"])
def test_steps_and_samples_are_trls(finished: Jobs, name: str) -> None:
    job = finished(name)
    found = of(job)
    assert job.problems == []
    assert found.run.no_rollout == ""
    assert found.goodput is not None
    assert [time.step for time in found.steps.times] == [1, 2, 3]
    assert found.goodput.trained.samples == 3 * 8
    assert set(job.rows('SELECT count(*) FROM trajectories GROUP BY "group"')) == {EACH}
    if name != "command":  # which writes no log of its own
        tokens = logged(job, "num_tokens")[-1]["num_tokens"]
        assert job.rows("SELECT sum(prompt_tokens + response_tokens) FROM trajectories") == [tokens]
    if name in ("1.9.0", "1.0.0"):
        assert found.run.framework == f"trl {name}"
