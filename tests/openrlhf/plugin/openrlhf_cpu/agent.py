"""An environment that lets a policy try again once. OpenRLHF loads this file by its path."""

from __future__ import annotations

import time
from typing import Any

import torch
from job_stamps import stamp
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

TURNS = 2
STEP_S = 0.02


class Sums(AgentInstanceBase):
    def __init__(self) -> None:
        self.turn = 0

    async def reset(self, states: dict[str, Any], **_more: Any) -> dict[str, Any]:
        return {"observation": states["observation"]}

    async def step(self, states: dict[str, Any], **_more: Any) -> dict[str, Any]:
        """Judges an answer; blocks for a moment, as a tool might."""
        start_ns = time.time_ns()
        time.sleep(STEP_S)
        self.turn += 1
        right = float(states["label"] in states["action_text"])
        done = self.turn == TURNS
        stamp("step", start_ns, score=right, done=done)
        return {
            "rewards": torch.tensor(right),
            "scores": torch.tensor(right),
            "environment_feedback": "" if done else "\nno, try again: ",
            "done": done,
            "sampling_params": states["sampling_params"],
            "extra_logs": {"turns": torch.tensor(float(self.turn))},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    """The name that OpenRLHF looks for."""

    def __init__(self) -> None:
        super().__init__(Sums)
