"""Token ids where adapters have them at hand, read back as the framework had them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rltrace
from rltrace.testing.inside.adapters import pairs, rollouts
from rltrace.testing.inside.hooks import Call, Recorder, identify
from tests.adapters import openrlhf_shapes, trl_shapes, verl_shapes
from tests.adapters.test_openrlhf_tokens import Agent
from tests.adapters.test_trl_generation import Trainer
from tests.adapters.test_trl_rollouts import Loop
from tests.hooks.conftest import WRAP, clean_environment

END = trl_shapes.END

Tokens = tuple[list[int] | None, list[int] | None]


def captured(run_path: Path) -> list[Tokens]:
    """What is read back, in order; nothing went wrong."""
    run = rltrace.open_run(run_path)
    assert [p for p in run.problems if p["what"] != "no-gpu"] == []
    ids = "prompt_token_ids, response_token_ids"
    found: list[Tokens] = run.sql(f"SELECT {ids} FROM captured ORDER BY ALL").fetchall()
    return found


def test_of_trls_batches(capturing: Recorder, run_path: Path) -> None:
    said = [trl_shapes.message("assistant")]
    masks = [[1, 1], [1, 1, 0, 1]]
    generated = ([[5, 6], [7]], [[4, END], [4, 8, 6, 4]], masks, [said, said], None, {})
    Trainer(generated)._generate(["p", "q"])
    assert captured(run_path) == [([5, 6], [4, END]), ([7], [4, 8, 6, 4])]


def test_of_a_batch_without_a_recorder_that_captures(recorder: Recorder, run_path: Path) -> None:
    Trainer(([[5, 6]], [[4, END]], ["x"]))._generate(["p"])
    assert captured(run_path) == []
    assert list((run_path / "captured_tokens").iterdir()) == []


@pytest.mark.parametrize("arrays", [False, True])
def test_of_trls_conversations(capturing: Recorder, run_path: Path, arrays: bool) -> None:
    async def roll_out() -> None:
        worker = Loop()
        said, *_ = await worker._generate_one("prompt", [[4, 4, 4, 4], [4, END]])
        kind: Any = trl_shapes.Array if arrays else list
        forks = [
            trl_shapes.Taken(kind([1, 4, 5]), kind([0, 1, 1]), 1, said, one=0.5),
            trl_shapes.Taken(kind([1, 2, 6]), kind([0, 0, 1]), 1, said),
        ]
        await worker._score_group(forks)

    rollouts._waiting.clear()
    asyncio.run(roll_out())
    assert captured(run_path) == [([1], [4, 5]), ([1, 2], [6])]


def _call(recorder: Recorder, trainer: Any, **known: Any) -> Call:
    call = Call(lambda prompts, completion_ids_list: None, (), {}, recorder)
    call.args = (trainer,)
    call.kwargs = known.pop("arguments", {})
    call.start_ns = 1
    for name, value in known.items():
        setattr(call, name, value)
    return call


@pytest.mark.parametrize("with_prompts", [True, False])
def test_of_trls_pairs(capturing: Recorder, run_path: Path, with_prompts: bool) -> None:
    """Prompts are padded tensors, which are read on the host only; samples are lists."""
    trainer = SimpleNamespace(
        state=SimpleNamespace(global_step=3),
        processing_class=SimpleNamespace(eos_token_id=END, pad_token_id=0),
        reward_funcs=[len],
    )
    begins = _call(capturing, trainer, arguments={"prompts": ["p", "q"]})
    pairs.begins(begins)
    ids = torch.tensor([[0, 5], [6, 7], [0, 5], [6, 7]])
    mask = torch.tensor([[0, 1], [1, 1], [0, 1], [1, 1]])
    if not with_prompts:
        mask = mask.to("meta")
    pairs.ends(_call(capturing, trainer, end_ns=2, result=(ids, mask)))
    lists = [[4, END, 0], [4, 4, 4], [8, END, 0], [END, 0, 0]]
    values = torch.zeros(4)
    known = {"completion_ids_list": lists}
    pairs.judged(_call(capturing, trainer, end_ns=3, result=values, arguments=known))
    prompts = [[5], [6, 7], [5], [6, 7]] if with_prompts else [None] * 4
    responses = [[4, END], [4, 4, 4], [8, END], [END]]
    assert sorted(captured(run_path), key=str) == sorted(
        zip(prompts, responses, strict=True), key=str
    )


def test_of_verls_agent_loops(
    capturing: Recorder, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def output(tokens: int, **of: Any) -> Any:
        given = made(tokens, **of)
        given.prompt_ids, given.response_ids = [3, 2, 1], list(range(tokens))
        return given

    made = verl_shapes.output
    monkeypatch.setattr(verl_shapes, "output", output)
    worker = verl_shapes.Worker([verl_shapes.answer(3), verl_shapes.answer(4)])
    asyncio.run(worker.run({"validate": False}, uid="u", session_id=1))
    assert captured(run_path) == [([3, 2, 1], [0, 1, 2, 3, 4, 5, 6])]
    (own_id,) = rltrace.open_run(run_path).sql("SELECT trajectory FROM captured").fetchall()
    assert own_id == (identify("u_1_0"),)


def test_a_trajectory_that_nobody_can_tell_from_others_has_none(
    capturing: Recorder, run_path: Path
) -> None:
    """Neither has a validation a trajectory, nor one without a prompt's id an id."""
    for validate in (True, False):
        worker = verl_shapes.Worker([verl_shapes.answer(3)])
        asyncio.run(worker.run({"validate": validate}))
    assert captured(run_path) == []
    count = rltrace.open_run(run_path).sql("SELECT count(*) FROM trajectories").fetchall()
    assert count == [(1,)]


@pytest.mark.usefixtures("fresh_openrlhf")
def test_of_openrlhfs_samples(capturing: Recorder, run_path: Path) -> None:
    answers = (openrlhf_shapes.Answer(2), openrlhf_shapes.Answer(2))
    actor = openrlhf_shapes.Engine(Agent([0, 0, 7, 0, 0]), answers)
    asyncio.run(actor.generate_responses("p"))
    assert captured(run_path) == [([1, 2], [0, 0, 7, 0, 0])]


@pytest.mark.usefixtures("fresh_openrlhf")
def test_a_response_that_says_nothing_of_its_tokens_has_none(
    capturing: Recorder, run_path: Path
) -> None:
    class Says(Agent):
        async def execute(self, prompt: str, llm_engine: Any) -> Any:
            await self.ask(llm_engine)
            return {"reward": 1.0} if prompt == "dict" else "text"

    for prompt in ("dict", "text"):
        answers = (openrlhf_shapes.Answer(2), openrlhf_shapes.Answer(2))
        actor = openrlhf_shapes.Engine(Says([]), answers)
        asyncio.run(actor.generate_responses(prompt))
    assert captured(run_path) == []


TRAINING = """
import json, os
from rltrace.trainer import TrainerConfig, train; from rltrace.testing.inside.trainer import crew
from rltrace.testing.inside.trainer import RolloutWorker

class Telling(RolloutWorker):
    '''Writes down what it generated.'''
    async def generate(self, requests):
        made = await super().generate(requests)
        with open(f"{folder}/told-{os.getpid()}", "a") as file:
            for one in made:
                line = [one.id, [int(token) for token in one.prompt], one.tokens.tolist()]
                file.write(json.dumps(line) + "\\n")
        return made

folder = os.getcwd()
crew.RolloutWorker = Telling
small = dict(prompts=2, samples=4, max_running=6, minibatches=1, symbols=8, model_size=0.05)
tools = dict(task="lookup", symbols=3, longest=2, shortest=1, max_response=9)
train(TrainerConfig.of(dict(steps=3, layers=1, heads=2, placement="disaggregated") | small | tools))
"""


@pytest.mark.slow
def test_of_a_job_of_the_built_in_trainer(tmp_path: Path) -> None:
    """On Ray, with tools, whose answers are in between."""
    (tmp_path / "job.py").write_text(TRAINING)
    asked = ("--capture-tokens", "--out", "run")
    done = subprocess.run(
        [*WRAP, *asked, "--", sys.executable, "job.py"],
        cwd=tmp_path,
        env=clean_environment(RAY_memory_monitor_refresh_ms="0"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [line for path in tmp_path.glob("told-*") for line in path.read_text().splitlines()]
    had = {identify(own_id): (prompt, tokens) for own_id, prompt, tokens in map(json.loads, told)}
    assert len(had) == len(told) >= 3 * 8
    assert sum(len(tokens) for _, tokens in had.values()) > 3 * 8
    rows = "SELECT trajectory, prompt_token_ids, response_token_ids FROM captured"
    found = rltrace.open_run(tmp_path / "run").sql(rows).fetchall()
    assert {own_id: (prompt, tokens or []) for own_id, prompt, tokens in found} == had
