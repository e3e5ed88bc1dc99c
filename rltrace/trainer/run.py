"""One training job: a Ray session, the actors, a placement, a ledger."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ray

from rltrace.trainer.config import TrainerConfig, TrainerError
from rltrace.trainer.ledger import Ledger, StepRecord
from rltrace.trainer.placement import PLACEMENTS, Crew
from rltrace.trainer.roles import Learner, Reference, RewardWorker, RolloutWorker, policy_of

OBJECT_STORE_BYTES = 200_000_000


def run(config: TrainerConfig, on_step: Callable[[StepRecord], None] | None = None) -> Ledger:
    """Trains in a Ray session; as `rltrace.trainer.train`."""
    if config.placement not in PLACEMENTS:
        known = ", ".join(PLACEMENTS)
        raise TrainerError(f"placement must be one of {known}, not {config.placement!r}")
    parameters = sum(p.numel() for p in policy_of(config).parameters())
    ledger = Ledger(config, parameters)
    with ray_session(config):
        crew = hire(config)
        started = time.perf_counter()
        for record in PLACEMENTS[config.placement](config, crew).run():
            ledger.steps.append(record)
            if on_step is not None:
                on_step(record)
        ledger.seconds = time.perf_counter() - started
    return ledger


def actors_of(config: TrainerConfig) -> int:
    """Number of actors, each of which reserves one CPU of the cluster."""
    return config.rollout_workers + config.reward_workers + 2  # the reference and the learner


@contextmanager
def ray_session(config: TrainerConfig) -> Iterator[None]:
    """Uses the Ray session there is; otherwise starts a cluster, or joins the one named.

    Errors: `TrainerError` where the cluster cannot be reached or has too few CPUs.
    """
    if ray.is_initialized():
        _check_size(config)
        yield
        return
    # A cluster of our own shares one machine among all roles: their CPUs are slots, not cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    own = config.ray_address == "local"
    directory = tempfile.mkdtemp(prefix="rlt-", dir="/tmp") if own else ""  # sockets need it short
    try:
        if own:
            ray.init(
                address="local",
                num_cpus=actors_of(config),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=True,
                _temp_dir=directory,
            )
        else:
            _join(config.ray_address)
        _check_size(config)
        yield
    finally:
        ray.shutdown()
        if own:
            shutil.rmtree(directory, ignore_errors=True)


def hire(config: TrainerConfig) -> Crew:
    """Starts the actors and waits until all have their models. They end with their handles."""

    def actor(role: type, *arguments: object) -> ray.actor.ActorHandle:
        return ray.remote(num_cpus=1)(role).remote(config, *arguments)

    crew = Crew(
        rollout=[actor(RolloutWorker, index) for index in range(config.rollout_workers)],
        reward=[actor(RewardWorker) for _ in range(config.reward_workers)],
        reference=actor(Reference),
        learner=actor(Learner),
    )
    everyone = [*crew.rollout, *crew.reward, crew.reference, crew.learner]
    ray.get([handle.__ray_ready__.remote() for handle in everyone])
    return crew


def _join(address: str) -> None:
    try:
        host, _, port = address.rpartition(":")
        if host and "://" not in address:
            # Ray retries for minutes where nobody listens; a look takes no time.
            socket.create_connection((host, int(port)), timeout=5).close()
        ray.init(address=address)
    except (OSError, ValueError) as error:
        raise TrainerError(f"no Ray cluster answers at {address}: {error}") from None


def _check_size(config: TrainerConfig) -> None:
    available = int(ray.cluster_resources().get("CPU", 0))
    if available < actors_of(config):
        raise TrainerError(
            f"the Ray cluster has {available} CPUs but the job needs {actors_of(config)}, one for"
            " each actor: start a larger cluster or ask for fewer workers"
        )
