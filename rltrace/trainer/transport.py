"""How a job's weights travel from learner to rollout workers."""

from __future__ import annotations

import secrets
import time

from ray.exceptions import ObjectLostError
from ray.util import get_node_ip_address
from ray.util.placement_group import get_current_placement_group

from rltrace.sync import transports
from rltrace.sync.memory.control import reclaim
from rltrace.sync.memory.policy_memory import shared_memory
from rltrace.sync.object_store import ObjectStorePublisher, ObjectStoreSubscriber
from rltrace.trace.errors import RltraceError
from rltrace.trainer.config import TrainerConfig

_NAME = "trainer"
_LOOKS, _PAUSE_S = 20, 0.1


def publisher_of(config: TrainerConfig) -> transports.WeightPublisher:
    if config.sync == "naive":
        return ObjectStorePublisher()
    if config.sync == "bucketed":
        return transports.SharedMemoryPublisher(_place())
    return transports.RelayedPublisher(_place(), get_node_ip_address(), config.link_gbps)


def subscriber_of(config: TrainerConfig) -> transports.WeightSubscriber:
    """A rollout worker's side; it hears of the place with the first version."""
    if config.sync == "naive":
        return ObjectStoreSubscriber(config.link_gbps)
    if config.sync == "bucketed":
        return transports.SharedMemorySubscriber(config.link_gbps)
    return _Relayed(changes=config.sync == "delta")


class _Relayed(transports.RelayedSubscriber):
    def fetch(self, manifest: transports.PublishedVersion) -> None:
        """As Ray says it of its own objects: the learner died with what was to be read."""
        try:
            super().fetch(manifest)
        except RltraceError as error:
            raise ObjectLostError("", None, str(error)) from error


def forget_weights(config: TrainerConfig) -> None:
    """Frees the memory of weights whose actors are gone, or are about to end."""
    for _ in range(_LOOKS if config.sync != "naive" else 0):
        reclaim(shared_memory())
        if not any(shared_memory().glob(f"{_NAME}-*")):
            return
        time.sleep(_PAUSE_S)


def _place() -> str:
    """The same for a learner that takes another one's place, another one for each run."""
    group = get_current_placement_group()
    return f"shm://{_NAME}-{group.id.hex() if group else secrets.token_hex(8)}"
