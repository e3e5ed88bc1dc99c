"""Agent Lightning: token ids of a model's calls, under the names that its own adapters look for;
rollouts that its server kept.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.adapters.agentlightning import rollout_built
from rltrace.adapters.agentlightning.store import _Calls
from rltrace.testing.inside.hooks import Call, Recorder
from tests.adapters.conftest import Rows

WEAVE = "agentlightning.operation.output"
PROXY = "llm.hosted_vllm"


@pytest.mark.parametrize(
    "attributes",
    [
        {"prompt_token_ids": [1, 2], "response_token_ids": [3, 4, 5]},
        {f"{PROXY}.prompt_token_ids": "[1, 2]", f"{PROXY}.response_token_ids": "[[3, 4, 5]]"},
        {f"{PROXY}.prompt_token_ids": "[1, 2]", f"{PROXY}.choices": "[{'token_ids': [3, 4, 5]}]"},
        {f"{WEAVE}.prompt_token_ids": [1, 2], f"{WEAVE}.response_token_ids.0": [3, 4, 5]},
        {f"{WEAVE}.prompt_token_ids": [1, 2], f"{WEAVE}.choices.0.token_ids": [3, 4, 5]},
        {
            **{f"{WEAVE}.prompt_token_ids.{place}": 1 for place in range(2)},
            **{f"{WEAVE}.choices.0.token_ids.{place}": 3 for place in range(3)},
        },
    ],
)
def test_ids_of_each_tracer_are_found_and_without_them_tokens_are_unknown(
    attributes: dict[str, Any],
) -> None:
    calls = _Calls()
    calls.add(attributes)
    calls.add(attributes)
    known = calls.columns()
    assert (known["token_ids"], known["prompt_tokens"], known["response_tokens"]) == (1, 2, 6)
    calls.add({"gen_ai.completion.0.content": "text"})
    unknown = {"prompt_tokens": -1, "response_tokens": -1}
    assert calls.columns() == {"turns": 3, "token_ids": 0, "logprobs": 0, **unknown}


def test_a_rollout_that_began_before_this_machine_started_is_there(
    recorder: Recorder, rows: Rows
) -> None:
    """Its server is another machine; a job that goes on may run on one that has just started."""
    call = Call(print, (), {}, recorder)
    told = {"rollout_id": "r", "data_id": "d", "triplets": []}
    for ago_s in (0, 10**9):
        ended_s = time.time() - ago_s
        call.result = SimpleNamespace(running_at=ended_s - 10**9, finished_at=ended_s, **told)
        rollout_built(call)
    assert rows("select count(*) from trajectories where end_ns >= start_ns") == [(2,)]
