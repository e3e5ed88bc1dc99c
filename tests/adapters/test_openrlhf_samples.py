"""What the OpenRLHF adapter reads of samples and verdicts, in the rollout actors."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from rltrace.testing.inside.adapters import openrlhf_rollout as rollout
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.trace import GIVEN_NAN, Outcome
from tests.adapters.conftest import CAPTURED, Rows
from tests.adapters.openrlhf_shapes import Answer, Engine, generate, hooked

pytestmark = pytest.mark.usefixtures("fresh_openrlhf")


@hooked("SingleTurnAgentExecutor")
class SingleTurn:
    """OpenRLHF's executor with a reward function."""

    reward_func = None

    def __init__(self, reward: Any = None) -> None:
        self.reward = reward

    async def _fetch_rewards_via_http(self, queries_list: list[str]) -> Any:
        if isinstance(self.reward, Exception):
            raise self.reward
        return [self.reward]

    async def _fetch_rewards_via_func(self, queries_list: list[str]) -> Any:
        return [await asyncio.to_thread(self.reward_func, queries_list)]

    async def execute(self, prompt: str, llm_engine: Any) -> Any:
        output = await llm_engine.generate([1, 2, 3])
        response = {"observation_tokens": [], "truncated": False, "reward": None}
        fetch = self._fetch_rewards_via_func if self.reward_func else self._fetch_rewards_via_http
        try:
            response["reward"] = (await fetch(["query"]))[0]["rewards"]
        except Exception:
            pass  # so does OpenRLHF
        response["truncated"] = output.outputs[0].finish_reason == "length"
        return response


def test_a_sample_is_a_trajectory_and_its_response_carries_its_id(rows: Rows) -> None:
    answers = (Answer(4, queued_s=0.02), Answer(7, "length"))
    responses = generate(SingleTurn({"rewards": 0.5}), *answers, samples=2)
    assert rows(
        "select prompt_tokens, response_tokens, turns, finish, first_version, last_version,"
        " first_token_ns between start_ns and end_ns from trajectories order by response_tokens"
    ) == [(3, 4, 1, "stop", 0, 0, True), (3, 7, 1, "length", 0, 0, True)]
    found = rows('select trajectory, "group" from trajectories')
    assert {response[rollout.TAG] for response in responses} == set(found)
    assert len({group for _, group in found}) == 1
    verdicts = "select distinct component, value, outcome from rewards"
    assert rows(verdicts) == [("reward server", 0.5, "ok")]


def test_a_verdict_lasts_as_long_as_the_users_function_and_not_its_wait_for_a_thread(
    rows: Rows,
) -> None:
    ran: list[tuple[int, int]] = []

    def judge(queries: list[str]) -> dict[str, float]:
        began = time.monotonic_ns()
        time.sleep(0.02)
        ran.append((began, time.monotonic_ns()))
        return {"rewards": 0.5}

    executor = SingleTurn()
    executor.reward_func = judge

    async def all_of_them() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await Engine(executor, [Answer(4)] * 3).generate_responses("p", num_samples=3)

    asyncio.run(all_of_them())
    found = rows("select start_ns, end_ns from raw_rewards order by start_ns")
    assert len(found) == len(ran) == 3
    assert all(end_ns <= start_ns for (_, end_ns), (start_ns, _) in pairwise(found))
    verdicts = "select distinct component, value, outcome from rewards"
    assert rows(verdicts) == [("judge", 0.5, "ok")]
    assert rows("select count(*) from spans where stage = 'reward'") == [(3,)]


@pytest.mark.parametrize("stamped", [True, False])
def test_a_request_generates_from_when_vllm_has_scheduled_it(rows: Rows, stamped: bool) -> None:
    """Without stamps it is as long as its call."""
    generate(SingleTurn(), Answer(4, queued_s=0.05, stamped=stamped))
    queue = "from spans r, spans q where r.stage = 'rollout' and q.name = 'vLLM''s queue'"
    waited = f"select r.start_ns - q.end_ns, (q.end_ns - q.start_ns) / 1e9 >= 0.05 {queue}"
    assert rows(waited) == [(0, True)] * stamped
    assert rows("select tokens, items from spans where stage = 'rollout'") == [(4, 1)]
    known = "select first_token_ns is not null, first_version from trajectories"
    assert rows(known) == [(stamped, 0)]


def test_weights_that_arrive_during_a_request_make_a_trajectory_of_two_versions(rows: Rows) -> None:
    updates = ("a", "b")
    actor = Engine(SingleTurn(), (Answer(4, updates=updates), Answer(5, "stop", 0, False, updates)))
    for _ in range(2):
        asyncio.run(actor.generate_responses("p"))
    found = rows("select response_tokens, first_version, last_version from trajectories order by 1")
    assert found == [(4, 0, 1), (5, 1, 2)]


def test_a_request_that_waited_for_new_weights_is_of_them_alone(rows: Rows) -> None:
    """It was sent before the update, and not scheduled until it was over."""
    actor = Engine(SingleTurn(), (Answer(4, queued_s=0.05),))

    async def both() -> None:
        waiting = asyncio.create_task(actor.generate_responses("p"))
        await asyncio.sleep(0.01)
        await actor.update_weight("a", empty_cache=True)
        await waiting

    asyncio.run(both())
    assert rows("select first_version, last_version from trajectories") == [(1, 1)]
    assert rows("select version from spans where stage = 'rollout'") == [(1,)]


@pytest.mark.parametrize(
    ("reward", "outcome", "is_nan"),
    [
        (ValueError("theirs"), Outcome.ERROR, False),
        (TimeoutError(), Outcome.TIMEOUT, False),
        (None, Outcome.ERROR, False),
        ({"rewards": None}, Outcome.ERROR, False),
        ({"rewards": "none"}, Outcome.ERROR, False),
        ({"rewards": float("nan")}, Outcome.OK, True),  # no number, and a verdict
    ],
)
def test_a_verdict_that_fails_is_told_and_the_sample_stays(
    rows: Rows, reward: Any, outcome: Outcome, is_nan: bool
) -> None:
    generate(SingleTurn(reward), Answer(4))
    given = rows(f"select outcome, {GIVEN_NAN}, end_ns >= start_ns from raw_rewards")
    assert given == [(int(outcome), is_nan, True)]
    assert rows("select value from rewards") == [(None,)]
    assert rows("select finish, end_ns is not null from trajectories") == [("stop", True)]


def test_a_verdict_that_never_comes_leaves_a_row_and_the_generation_before_it(rows: Rows) -> None:
    @hooked("SingleTurnAgentExecutor")
    class Hangs(SingleTurn):
        async def _fetch_rewards_via_http(self, queries_list: list[str]) -> Any:
            await asyncio.sleep(60)

    async def give_up() -> None:
        actor = Engine(Hangs(), (Answer(4),))
        task = asyncio.create_task(actor.generate_responses("p"))
        await asyncio.sleep(0.05)
        assert rows("select end_ns, outcome from rewards") == [(None, None)]
        assert rows("select finish from trajectories") == [("stop",)]
        task.cancel()

    asyncio.run(give_up())


def test_a_request_that_fails_ends_its_trajectory_with_an_error(rows: Rows) -> None:
    with pytest.raises(IndexError):
        generate(SingleTurn())
    assert rows("select finish, end_ns is not null from trajectories") == [("error", True)]


class Environment:
    """An environment of the user's."""

    async def step(self, states: Any) -> float:
        await asyncio.sleep(0.02)
        return 1.0


class UsersExecutor:
    """An executor of the user's that overrides `execute` and asks twice."""

    def __init__(self, environment: type) -> None:
        self.environment = environment
        given = hooked("MultiTurnAgentExecutor.__init__")(lambda self, agent_instance_cls: None)
        given(self, environment)

    async def execute(self, prompt: str, llm_engine: Any) -> Any:
        environment = self.environment()
        for turn in range(2):
            await llm_engine.generate([0] * (10 * turn + 2))
            reward = await environment.step({})
        return {"reward": reward, "truncated": False}


def test_a_users_executor_and_its_environment_are_seen(rows: Rows) -> None:
    [response] = generate(UsersExecutor(Environment), Answer(4), Answer(5))
    generate(UsersExecutor(Environment), Answer(6), Answer(7))  # watched once
    columns = "prompt_tokens, response_tokens, turns, env_ns >= 40000000"
    assert rows(f"select {columns} from trajectories") == [(2, 9, 2, True), (2, 13, 2, True)]
    steps = "select name, count(*) from spans where stage = 'env' group by 1"
    assert rows(steps) == [("Environment.step", 4)]
    verdicts = "select component, value, end_ns - start_ns from rewards limit 1"
    assert rows(verdicts) == [("agent", 1.0, 0)]
    assert response[rollout.TAG]


def test_requests_made_elsewhere_leave_what_the_response_says(
    recorder: Recorder, rows: Rows
) -> None:
    """An executor that serves an API to its agent is asked in other tasks."""
    said = {"action_ranges": [(3, 8), (10, 12)], "rollout_log_probs": [0.0] * 12}
    actor = Engine(Agent(said, turns=0))
    recorder.version = 2
    asyncio.run(actor.generate_responses("p"))
    columns = "prompt_tokens, response_tokens, turns, logprobs, first_version, last_version"
    assert rows(f"select {columns} from trajectories") == [(3, 7, 2, 1, 2, 2)]


# --- an agent whose turns are tokenized anew is flagged, one that keeps its tokens is not

GIVEN, OTHER = 0, 7
"""What the engine gives throughout, and a token that it never gave."""


def response(tokens: list[int], log_probs: Any = (0.0,) * 7) -> dict[str, Any]:
    """What is to be trained on of two turns."""
    observed = {"observation_tokens": [1, 2, *tokens], "action_ranges": [(2, 4), (5, 7)]}
    return {**observed, "rollout_log_probs": log_probs}


class Agent:
    """An executor of the user's that asks a few times, and gives a response."""

    def __init__(self, response: Any, turns: int = 2) -> None:
        self.response, self.turns = response, turns

    async def ask(self, llm_engine: Any) -> None:
        for _ in range(self.turns):
            await llm_engine.generate([1, 2])

    async def execute(self, prompt: str, llm_engine: Any) -> Any:
        await self.ask(llm_engine)
        return self.response


class Serves(Agent):
    """One that serves an API, from a thread, to what asks it."""

    async def ask(self, llm_engine: Any) -> None:
        thread = threading.Thread(target=asyncio.run, args=(super().ask(llm_engine),))
        thread.start()
        await asyncio.to_thread(thread.join)


def kept(rows: Rows, executor: Any) -> list[tuple[Any, ...]]:
    """What is known of a sample whose turns have two tokens each."""
    generate(executor, Answer(2, stamped=False), Answer(2, stamped=False))
    return rows("select token_ids, logprobs from trajectories")


@pytest.mark.parametrize("executor", [Agent, Serves])
@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([GIVEN, GIVEN, OTHER, GIVEN, GIVEN], 1),
        ([GIVEN, OTHER, OTHER, GIVEN, GIVEN], 0),
        ([GIVEN, GIVEN, OTHER, OTHER, GIVEN], 0),
    ],
)
def test_tokens_are_those_that_vllm_gave(
    rows: Rows, executor: type[Agent], tokens: list[int], expected: int
) -> None:
    assert kept(rows, executor(response(tokens))) == [(expected, 1)]
    assert rows(CAPTURED) == [([1, 2], tokens)]


def test_log_probs_are_kept_where_the_agent_passes_them_on(rows: Rows) -> None:
    assert kept(rows, Agent(response([GIVEN] * 5, log_probs=None))) == [(1, 0)]


def test_what_is_not_all_remembered_is_unknown(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "_MOST_ELSEWHERE", 1)
    assert kept(rows, Serves(response([OTHER] * 5))) == [(None, 1)]


@pytest.mark.parametrize("said", [{"reward": 1.0}, "text"])
def test_a_response_that_says_nothing_of_its_tokens_has_none(rows: Rows, said: Any) -> None:
    assert kept(rows, Agent(said)) == [(None, 0)]
    assert rows(CAPTURED) == []
