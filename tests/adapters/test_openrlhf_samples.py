"""What the OpenRLHF adapter reads of samples and verdicts, in the rollout actors."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.adapters import agents
from rltrace.testing.inside.adapters import openrlhf_rollout as rollout
from rltrace.testing.inside.adapters import openrlhf_verdicts as verdicts
from rltrace.testing.inside.hooks import recorder as recording
from rltrace.testing.inside.trace import GIVEN_NAN, Outcome
from tests.adapters.openrlhf_shapes import Answer, Engine, hooked, problems, rows

pytestmark = pytest.mark.usefixtures("fresh_openrlhf")


class SingleTurn:
    """OpenRLHF's executor with a reward function."""

    reward_func = None

    def __init__(self, reward: Any = None) -> None:
        self.reward = reward

    async def _fetch(self, queries_list: list[str]) -> Any:
        if isinstance(self.reward, Exception):
            raise self.reward
        return [self.reward]

    async def _execute(self, prompt: str, llm_engine: Any) -> Any:
        output = await llm_engine.generate([1, 2, 3])
        response = {"observation_tokens": [], "truncated": False, "reward": None}
        try:
            response["reward"] = (await self.fetch(["query"]))[0]["rewards"]
        except Exception:
            pass  # so does OpenRLHF
        response["truncated"] = output.outputs[0].finish_reason == "length"
        return response

    fetch = hooked(_fetch, "reward", before=verdicts.judging, after=verdicts.judged)
    execute = hooked(_execute, before=rollout.begins, after=agents.sample_ends)


def generate(executor: Any, *answers: Answer, samples: int = 1, prompt: str = "p") -> list[Any]:
    """The responses of one prompt."""
    actor = Engine(executor, answers)
    return list(asyncio.run(actor.generate_responses(prompt, num_samples=samples)))


def test_a_sample_is_a_trajectory_and_its_response_carries_its_id(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.version = 0
    answers = (Answer(4, queued_s=0.02), Answer(7, "length"))
    responses = generate(SingleTurn({"rewards": 0.5}), *answers, samples=2)
    found = rows(
        run_path,
        'select trajectory, "group", prompt_tokens, response_tokens, turns, finish, '
        "first_version, last_version, first_token_ns between start_ns and end_ns "
        "from trajectories order by response_tokens",
    )
    assert [row[2:] for row in found] == [
        (3, 4, 1, "stop", 0, 0, True),
        (3, 7, 1, "length", 0, 0, True),
    ]
    assert {response[rollout.TAG] for response in responses} == {row[:2] for row in found}
    assert len({row[1] for row in found}) == 1
    assert rows(run_path, "select distinct component, value, outcome from rewards") == [
        ("reward server", 0.5, "ok")
    ]
    assert not problems(run_path)


class JudgedInThreads(SingleTurn):
    """OpenRLHF's executor with a reward function of the user's, which it calls in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[int, int]] = []

        def judge(queries: list[str]) -> dict[str, float]:
            began = time.monotonic_ns()
            time.sleep(0.02)
            self.ran.append((began, time.monotonic_ns()))
            return {"rewards": 0.5}

        self.reward_func = judge

    async def _fetch(self, queries_list: list[str]) -> Any:
        return [await asyncio.to_thread(self.reward_func, queries_list)]

    fetch = hooked(_fetch, "reward", before=agents.verdict_wanted, after=verdicts.judged)


def test_a_verdict_lasts_as_long_as_the_users_function_and_not_its_wait_for_a_thread(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.version = 0
    executor = JudgedInThreads()

    async def all_of_them() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await Engine(executor, [Answer(4)] * 3).generate_responses("p", num_samples=3)

    asyncio.run(all_of_them())
    found = rows(run_path, "select start_ns, end_ns from raw_rewards order by start_ns")
    assert len(found) == len(executor.ran) == 3
    assert all(end_ns <= start_ns for (_, end_ns), (start_ns, _) in pairwise(found))
    assert rows(run_path, "select distinct component, value, outcome from rewards") == [
        ("judge", 0.5, "ok")
    ]
    [calls] = rows(run_path, "select count(*) from spans where stage = 'reward'")
    assert calls == (3,)
    assert not problems(run_path)


def test_a_request_generates_from_when_vllm_has_scheduled_it(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.version = 0
    generate(SingleTurn(), Answer(4, queued_s=0.05))
    [(request, queue)] = rows(
        run_path,
        "select r.start_ns - q.end_ns, (q.end_ns - q.start_ns) / 1e9 from spans r, spans q "
        "where r.stage = 'rollout' and q.name = 'vLLM''s queue'",
    )
    assert request == 0
    assert queue >= 0.05
    assert rows(run_path, "select tokens, items from spans where stage = 'rollout'") == [(4, 1)]


def test_without_stamps_a_request_is_as_long_as_its_call(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.version = 0
    generate(SingleTurn(), Answer(4, queued_s=0.02, stamped=False))
    assert rows(run_path, "select distinct stage from spans order by 1") == [
        ("reward",),
        ("rollout",),
    ]
    assert rows(run_path, "select first_token_ns, first_version from trajectories") == [(None, 0)]


def test_weights_that_arrive_during_a_request_make_a_trajectory_of_two_versions(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.version = 0
    generate(SingleTurn(), Answer(4, updates=("a", "b")))
    generate(SingleTurn(), Answer(5, updates=("a", "b"), stamped=False))
    found = rows(
        run_path, "select response_tokens, first_version, last_version from trajectories order by 1"
    )
    assert found == [(4, 0, 1), (5, 1, 2)]


def test_a_request_that_waited_for_new_weights_is_of_them_alone(
    recorder: recording.Recorder, run_path: Path
) -> None:
    """It was sent before the update, and not scheduled until it was over."""
    recorder.version = 0
    actor = Engine(SingleTurn(), (Answer(4, queued_s=0.05),))

    async def both() -> None:
        waiting = asyncio.create_task(actor.generate_responses("p"))
        await asyncio.sleep(0.01)
        await actor.update_weight("a", empty_cache=True)
        await waiting

    asyncio.run(both())
    assert rows(run_path, "select first_version, last_version from trajectories") == [(1, 1)]
    assert rows(run_path, "select version from spans where stage = 'rollout'") == [(1,)]


@pytest.mark.parametrize(
    ("reward", "outcome"),
    [
        (ValueError("theirs"), "error"),
        (TimeoutError(), "timeout"),
        (None, "error"),
        ({"rewards": None}, "error"),
        ({"rewards": "none"}, "error"),
    ],
)
def test_a_verdict_that_fails_is_told_and_the_sample_stays(
    recorder: recording.Recorder, run_path: Path, reward: Any, outcome: str
) -> None:
    generate(SingleTurn(reward), Answer(4))
    assert rows(run_path, "select value, outcome, end_ns >= start_ns from rewards") == [
        (None, outcome, True)
    ]
    assert rows(run_path, "select finish, end_ns is not null from trajectories") == [("stop", True)]


def test_a_verdict_that_is_no_number_is_one_and_no_error(
    recorder: recording.Recorder, run_path: Path
) -> None:
    generate(SingleTurn({"rewards": float("nan")}), Answer(4))
    given = f"select outcome, {GIVEN_NAN} from raw_rewards"
    assert rows(run_path, given) == [(int(Outcome.OK), True)]


def test_a_verdict_that_never_comes_leaves_a_row_and_the_generation_before_it(
    recorder: recording.Recorder, run_path: Path
) -> None:
    class Hangs(SingleTurn):
        async def _fetch(self, queries_list: list[str]) -> Any:
            await asyncio.sleep(60)

        fetch = hooked(_fetch, "reward", before=verdicts.judging, after=verdicts.judged)

    async def give_up() -> None:
        actor = Engine(Hangs(), (Answer(4),))
        task = asyncio.create_task(actor.generate_responses("p"))
        await asyncio.sleep(0.05)
        assert rows(run_path, "select end_ns, outcome from rewards") == [(None, None)]
        assert rows(run_path, "select finish from trajectories") == [("stop",)]
        task.cancel()

    asyncio.run(give_up())


def test_a_request_that_fails_ends_its_trajectory_with_an_error(
    recorder: recording.Recorder, run_path: Path
) -> None:
    with pytest.raises(IndexError):
        generate(SingleTurn())
    assert rows(run_path, "select finish, end_ns is not null from trajectories") == [
        ("error", True)
    ]


class Environment:
    """An environment of the user's."""

    async def step(self, states: Any) -> float:
        await asyncio.sleep(0.02)
        return 1.0


class UsersExecutor:
    """An executor of the user's that overrides `execute` and asks twice."""

    def __init__(self, environment: type) -> None:
        self.take(environment)

    def _take(self, agent_instance_cls: type) -> None:
        self.environment = agent_instance_cls

    take = hooked(_take, agents.no_span, before=agents.environment_known)

    async def execute(self, prompt: str, llm_engine: Any) -> Any:
        environment = self.environment()
        for turn in range(2):
            await llm_engine.generate([0] * (10 * turn + 2))
            reward = await environment.step({})
        return {"reward": reward, "truncated": False}


def test_a_users_executor_and_its_environment_are_seen(
    recorder: recording.Recorder, run_path: Path
) -> None:
    [response] = generate(UsersExecutor(Environment), Answer(4), Answer(5))
    generate(UsersExecutor(Environment), Answer(6), Answer(7))  # watched once
    assert rows(
        run_path,
        "select prompt_tokens, response_tokens, turns, env_ns >= 40000000 from trajectories",
    ) == [(2, 9, 2, True), (2, 13, 2, True)]
    assert rows(run_path, "select name, count(*) from spans where stage = 'env' group by 1") == [
        ("Environment.step", 4)
    ]
    assert rows(run_path, "select component, value, end_ns - start_ns from rewards limit 1") == [
        ("agent", 1.0, 0)
    ]
    assert response[rollout.TAG]
    assert not problems(run_path)


def test_requests_made_elsewhere_leave_what_the_response_says(
    recorder: recording.Recorder, run_path: Path
) -> None:
    """An executor that serves an API to its agent is asked in other tasks."""

    class Serves:
        async def execute(self, prompt: str, llm_engine: Any) -> Any:
            return {"action_ranges": [(3, 8), (10, 12)], "rollout_log_probs": [0.0] * 12}

    recorder.version = 2
    generate(Serves())
    assert rows(
        run_path,
        "select prompt_tokens, response_tokens, turns, logprobs, first_version, last_version "
        "from trajectories",
    ) == [(3, 7, 2, 1, 2, 2)]
