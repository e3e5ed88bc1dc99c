"""An asynchronous loop over actors of Monarch's, each in a process of its own.

python monarch_loop.py STEPS
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import monarch_actors
from monarch.actor import shutdown_context, this_host

BATCH = 4
LIMIT_S = 120


def spawn(name: str, kind: type) -> Any:
    return this_host().spawn_procs(per_host={"procs": 1}).spawn(name, kind)


async def main(steps: int) -> None:
    """Generation goes on while the trainer trains."""
    generator = spawn("generator", monarch_actors.Generator)
    verifier = spawn("verifier", monarch_actors.Verifier)
    buffer = spawn("buffer", monarch_actors.Buffer)
    trainer = spawn("trainer", monarch_actors.Trainer)
    over = asyncio.Event()

    async def generate() -> None:
        while not over.is_set():
            sample = await generator.generate.call_one()
            await verifier.judge.call_one(sample["sample"])
            await buffer.add.call_one(sample)

    generating = asyncio.create_task(generate())
    for step in range(steps):
        while not (batch := await buffer.take.call_one(BATCH)):
            await asyncio.sleep(0.05)
        weights = await trainer.train.call_one(step, batch)
        await generator.load.call_one(step + 1, weights)
    over.set()
    await generating


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
    # What it would do at the exit, where it has a second for it: a busy machine takes longer.
    shutdown_context(host_timeout=LIMIT_S).get(timeout=LIMIT_S)
