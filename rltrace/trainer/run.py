"""One training job: a Ray session, the actors, a placement, a ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ray

from rltrace.trainer.actor_pools import Crew, hire
from rltrace.trainer.chains import Chains
from rltrace.trainer.checkpoint import Checkpoint
from rltrace.trainer.cluster import ray_session, reserved
from rltrace.trainer.config import RunFailed, TrainerConfig
from rltrace.trainer.learning.policy import initial_weights, policy_of
from rltrace.trainer.ledger import Ledger, StepRecord
from rltrace.trainer.placement import PLACEMENTS
from rltrace.trainer.transport import forget_weights

OnStep = Callable[[StepRecord], None]


def run(config: TrainerConfig, on_step: OnStep, ledger: Ledger) -> None:
    ledger.parameters = sum(p.numel() for p in policy_of(config).parameters())
    checkpoint = Checkpoint(config)
    try:
        with ray_session(config) as own, reserved(config, own) as places:
            crew = hire(config, ray.put(initial_weights(config)), places)
            asyncio.run(train_with(config, crew, ledger, checkpoint, on_step))
    finally:
        forget_weights(config)


async def train_with(
    config: TrainerConfig, crew: Crew, ledger: Ledger, checkpoint: Checkpoint, on_step: OnStep
) -> None:
    asyncio.get_running_loop().set_exception_handler(_say_once)
    chains = Chains(config, crew, ledger, checkpoint)
    await asyncio.gather(*(pool.start() for pool in crew.pools))
    ledger.begin()
    if checkpoint.state is not None:
        await chains.resume()
    try:
        await PLACEMENTS[config.placement](config, chains, ledger, checkpoint.step).run(on_step)
    finally:
        ledger.end(chains.version)


def _say_once(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Where a role has nobody left, all that need it fail, and one of them ends the run."""
    if not isinstance(context.get("exception"), RunFailed):
        loop.default_exception_handler(context)
