"""Agent Lightning 0.3: its store, its runner and its tracer, around an agent that asks a stub of a
model's server. The algorithm publishes resources and takes rollouts, some of them late.

    python lightning_loop.py STEPS
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or importing litellm asks the network

import agentlightning
import openai
import openai_stub
from agentlightning.adapter import TracerTraceToTriplet
from job_stamps import stamp

GROUP = 4


@agentlightning.rollout
async def agent(task: dict[str, Any], llm: agentlightning.LLM, rollout: Any) -> float | None:
    """Asks once or twice; some tasks ask a server that keeps no token ids, some fail."""
    client = openai.AsyncOpenAI(base_url=llm.endpoint, api_key="none")
    for _ in range(task["turns"]):
        asked = [{"role": "user", "content": "2+2?"}]
        attempt = rollout.attempt.attempt_id
        await client.chat.completions.create(model=task["model"], messages=asked, user=attempt)
    if task["fails"]:
        raise ValueError("an agent that fails")
    value = float(task["number"] % 2)
    stamp("judged", attempt=rollout.attempt.attempt_id, value=value)
    if task["number"] % 3:
        return value
    agentlightning.emit_reward(value)
    return None


def task_of(number: int) -> dict[str, Any]:
    model = "plain" if number % 5 == 4 else "whole"
    return {"number": number, "turns": 1 + number % 2, "model": model, "fails": number == 6}


async def main(steps: int) -> None:
    store = agentlightning.InMemoryLightningStore()
    often = {"poll_interval": 0.05, "interval_jitter": 0.0, "heartbeat_launch_mode": "asyncio"}
    runner = agentlightning.LitAgentRunner(agentlightning.AgentOpsTracer(), **often)
    runner.init(agent)
    runner.init_worker(0, store)
    running = asyncio.create_task(runner.iter())
    llm = {"llm": agentlightning.LLM(endpoint=openai_stub.start(), model="stub")}
    versions: dict[str, int] = {}
    pending: list[str] = []
    for step in range(steps):
        resources = await store.add_resources(llm)
        versions[resources.resources_id] = step
        for place in range(GROUP):
            of: dict[str, Any] = {"mode": "train", "resources_id": resources.resources_id}
            of["metadata"] = {"data_id": f"prompt {step}"}
            rollout = await store.enqueue_rollout(input=task_of(step * GROUP + place), **of)
            pending.append(rollout.rollout_id)
        count = GROUP if step else GROUP // 2  # some are left, and become stale
        taken, pending = pending[:count], pending[count:]
        for done in await store.wait_for_rollouts(rollout_ids=taken, timeout=600):
            await taken_by(store, step, versions, done)
    for done in await store.wait_for_rollouts(rollout_ids=pending, timeout=600):
        await taken_by(store, steps - 1, versions, done)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def taken_by(store: Any, step: int, versions: dict[str, int], rollout: Any) -> None:
    """Writes down what the algorithm has of a rollout, by Agent Lightning's own adapter."""
    spans = await store.query_spans(rollout.rollout_id)
    triplets = TracerTraceToTriplet().adapt(spans) if rollout.status == "succeeded" else []
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    version = versions[rollout.resources_id]
    found = {"attempt": attempt.attempt_id, "status": rollout.status, "version": version}
    tokens = [len(triplet.response["token_ids"]) for triplet in triplets]
    stamp("taken", **found, lag=step - version, tokens=tokens)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
