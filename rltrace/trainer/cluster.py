"""The Ray session of a job, and the places that it reserves there."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from rltrace.trainer.config import TrainerConfig, TrainerError

OBJECT_STORE_BYTES = 200_000_000
RESERVE_SECONDS = 30.0


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
    directory = ""
    try:
        if config.joined_cluster:
            _join(config.joined_cluster)
        else:
            directory = tempfile.mkdtemp(prefix="rlt-", dir="/tmp")  # sockets need it short
            ray.init(
                address="local",
                num_cpus=actors_of(config),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=True,
                _temp_dir=directory,
            )
        _check_size(config)
        yield
    finally:
        ray.shutdown()
        if directory:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def reserved(config: TrainerConfig) -> Iterator[dict[str, tuple[PlacementGroup, int]]]:
    """Reserves a CPU for each actor: role and index ("rollout/0") -> placement group and bundle.

    A colocated job is one bundle, whose devices all roles share; otherwise each rollout worker,
    the reward workers and the training roles have bundles of their own, on several nodes if it can.

    Errors: `TrainerError` where no arrangement of the cluster's nodes holds the bundles.
    """
    rollout = [f"rollout/{index}" for index in range(config.rollout_workers)]
    reward = [f"reward/{index}" for index in range(config.reward_workers)]
    train = ["reference/0", "learner/0"]
    pools = [train, *([name] for name in rollout), reward]
    if config.placement == "colocated":
        pools = [[*train, *rollout, *reward]]
    group = placement_group([{"CPU": len(pool)} for pool in pools], strategy="SPREAD")
    try:
        if not group.wait(RESERVE_SECONDS):
            largest = max(map(len, pools))
            raise TrainerError(
                f"no arrangement of the cluster's nodes holds the job's {len(pools)} bundles of up"
                f" to {largest} CPUs within {RESERVE_SECONDS:.0f} s: free or add nodes, or ask for"
                " fewer workers"
            )
        yield {name: (group, bundle) for bundle, pool in enumerate(pools) for name in pool}
    finally:
        remove_placement_group(group)


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
