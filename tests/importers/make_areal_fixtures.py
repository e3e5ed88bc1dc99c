"""Makes `fixtures/areal`: what AReaL's own tracer writes of two small steps.

    python -m tests.importers.make_areal_fixtures

Needs `areal`; the files there are 1.0.4's. The spans are named as its trainer names them, and the
sessions are traced as its executor and its workflows trace them.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from areal.api.cli_args import PerfTracerConfig, SessionTracerConfig
from areal.utils import perf_tracer

FIXTURES = Path(__file__).with_name("fixtures") / "areal"
SAMPLES = 4
PHASES = (("generate", 0.02), ("toolcall", 0.01), ("generate", 0.015), ("reward", 0.005))
UPDATE = ("recompute_logp", "compute_advantage", "ppo_update", "update_weights", "save")


async def sample(task: int, status: str) -> None:
    """A conversation with a tool, which is judged, and accepted or not."""
    perf_tracer.register_task(task)
    perf_tracer.set_task_id(task)
    perf_tracer.set_session_id(perf_tracer.register_session(task))
    for phase, seconds in PHASES:
        async with perf_tracer.atrace_session_phase(phase):
            await asyncio.sleep(seconds)
    perf_tracer.trace_session_event("mark_finalized", task_id=task, status=status)


async def train(steps: int) -> None:
    """Steps of the trainer: it waits for samples, the last of which is rejected, and updates."""
    for step in range(steps):
        numbers = {"global_step": step}
        with perf_tracer.trace_scope("train.rollout", category="compute", args=numbers):
            fates = ["accepted"] * (SAMPLES - 1) + ["rejected"]
            tasks = range(SAMPLES * step, SAMPLES * (step + 1))
            await asyncio.gather(*map(sample, tasks, fates))
        for name in UPDATE:
            with perf_tracer.trace_scope(f"train.{name}", category="compute", args=numbers):
                time.sleep(0.005)
        perf_tracer.save(step=step)
    perf_tracer.save(force=True)


def main() -> None:
    """Writes the files."""
    with tempfile.TemporaryDirectory() as folder:
        sessions = SessionTracerConfig(enabled=True)
        config = PerfTracerConfig("experiment", "trial", folder, True, session_tracer=sessions)
        perf_tracer.configure(config, rank=0)
        asyncio.run(train(2))
        FIXTURES.mkdir(exist_ok=True)
        for file in Path(folder).rglob("*.jsonl"):
            shutil.copy(file, FIXTURES / file.name)


if __name__ == "__main__":
    main()
