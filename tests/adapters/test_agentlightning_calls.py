"""Agent Lightning: token ids of a model's calls, under the names that its own adapters look for."""

from __future__ import annotations

from typing import Any

import pytest

from rltrace.adapters.agentlightning.store import _Calls

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
def test_ids_of_each_tracer_are_found(attributes: dict[str, Any]) -> None:
    calls = _Calls()
    calls.add(attributes)
    calls.add(attributes)
    columns = calls.columns()
    assert columns["token_ids"] == 1
    assert (columns["prompt_tokens"], columns["response_tokens"]) == (2, 6)


def test_a_call_without_ids_leaves_the_tokens_unknown() -> None:
    calls = _Calls()
    calls.add({"prompt_token_ids": [1], "response_token_ids": [2]})
    assert calls.columns()["response_tokens"] == 1
    calls.add({"gen_ai.completion.0.content": "text"})
    unknown = {"prompt_tokens": -1, "response_tokens": -1}
    assert calls.columns() == {"turns": 2, "token_ids": 0, "logprobs": 0, **unknown}
