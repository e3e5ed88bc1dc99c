"""The Ray session of a job, and the places that it reserves there."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partialmethod
from types import FrameType

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from rltrace.trainer.config import TrainerConfig, TrainerError

log = logging.getLogger("rltrace.trainer")
OBJECT_STORE_BYTES = 200_000_000
RESERVE_SECONDS = 30.0


def bundles_of(config: TrainerConfig) -> list[list[str]]:
    """Actors by role and index ("rollout/0") that stay together; each reserves one CPU."""
    rollout = [f"rollout/{index}" for index in range(config.rollout_workers)]
    reward = [f"reward/{index}" for index in range(config.reward_workers)]
    train = ["reference/0", "learner/0"]
    if config.placement == "colocated":
        return [[*train, *rollout, *reward]]
    return [train, *([name] for name in rollout), reward]


@contextmanager
def ray_session(config: TrainerConfig) -> Iterator[bool]:
    """Uses the Ray session there is, joins the cluster named, or starts one: yields whether it did.
    Errors: `TrainerError` where the cluster cannot be reached or has too few CPUs."""
    if ray.is_initialized():
        _check_size(config)
        yield False
        return
    # A cluster of our own shares one machine among all roles: their CPUs are slots, not cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    directory = ""
    try:
        if config.joined_cluster:
            _join(config.joined_cluster)
        else:
            directory = tempfile.mkdtemp(prefix="rlt-", dir="/tmp")  # sockets need it short
            with _apart():
                ray.init(
                    address="local",
                    num_cpus=sum(map(len, bundles_of(config))),
                    object_store_memory=OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    log_to_driver=True,
                    _temp_dir=directory,
                )
        _check_size(config)
        with _terminable():
            yield bool(directory)
    finally:
        ray.shutdown()
        if directory:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def reserved(config: TrainerConfig, own: bool) -> Iterator[dict[str, tuple[PlacementGroup, int]]]:
    """Reserves the bundles: role and index of an actor -> placement group and bundle. Errors:
    `TrainerError` where others hold the CPUs."""
    bundles = bundles_of(config)
    group = placement_group([{"CPU": len(bundle)} for bundle in bundles], strategy="SPREAD")
    try:
        if not group.wait(RESERVE_SECONDS):
            raise TrainerError(
                f"others hold the cluster's CPUs, and no room came up for the job's"
                f" {_sizes(config)}, within {RESERVE_SECONDS:.0f} s"
            )
        yield {name: (group, index) for index, bundle in enumerate(bundles) for name in bundle}
    finally:
        if not own:
            with suppress(Exception):  # the cluster may be gone, whose error is another's
                remove_placement_group(group)


def _join(address: str) -> None:
    try:
        host, _, port = address.rpartition(":")
        if host and "://" not in address:
            # Ray retries for minutes where nobody listens; a look takes no time.
            socket.create_connection((host, int(port)), timeout=5).close()
        ray.init(address=address)
    except (OSError, ValueError, RuntimeError) as error:
        why = str(error).strip().partition("\n")[0]
        raise TrainerError(f"no Ray cluster answers at {address}: {why}") from None


@contextmanager
def _apart() -> Iterator[None]:
    """Starts processes in groups of their own: signals to the job's would end the cluster."""
    begin = subprocess.Popen.__init__
    apart = partialmethod(begin, start_new_session=True)  # Ray has no option for it
    setattr(subprocess.Popen, "__init__", apart)  # noqa: B010 (mypy refuses an assignment)
    try:
        yield
    finally:
        setattr(subprocess.Popen, "__init__", begin)  # noqa: B010


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the job as Ctrl-C does. Ray's own handler would end the cluster first."""
    code = 128 + signal.SIGTERM
    ended = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        if not ended:
            log.warning("the run is ended by SIGTERM")
        ended = True
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            sys.exit(code)
        # An exception from here would end up in whichever task runs, and nobody might ask for it.
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks()])

    if threading.current_thread() is not threading.main_thread():
        yield  # signals are not ours to handle
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except asyncio.CancelledError:
        if ended:
            sys.exit(code)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_size(config: TrainerConfig) -> None:
    free = sorted(int(n["Resources"].get("CPU", 0)) for n in ray.nodes() if n["Alive"])
    nodes = free[::-1]
    # Each bundle to the smallest node that holds it, the largest first: if this fails, all do,
    # since at most two bundles are larger than one CPU.
    for size in sorted(map(len, bundles_of(config)), reverse=True):
        node = next((node for node, cpus in enumerate(free) if cpus >= size), None)
        if node is None:
            raise TrainerError(
                f"the Ray cluster has {sum(nodes)} CPUs but the job needs {_sizes(config)}, and no"
                f" arrangement on nodes of {', '.join(map(str, nodes))} holds them: start a larger"
                " cluster or ask for fewer workers"
            )
        free[node] -= size
        free.sort()


def _sizes(config: TrainerConfig) -> str:
    sizes = [len(bundle) for bundle in bundles_of(config)]
    return f"{sum(sizes)}, one for each actor, in bundles of {', '.join(map(str, sizes))}"
