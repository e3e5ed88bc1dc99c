"""verl's weights through rltrace.sync: a checkpoint engine, and the one that has a cache.

The trainer's first rank publishes into shared memory; every rollout worker of the host takes the
version from there, where it lies, so that one copy is made for all of them. The latest version and
the one before stay: `get_weights` has them at any time, without the trainer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from verl.checkpoint_engine.base import CheckpointEngineRegistry, CheckpointEngineWithCache

from rltrace.hooks import moved
from rltrace.hooks.phases import Phases
from rltrace.hooks.span_api import span
from rltrace.plugins.streaming import StreamPublisher, fresh_place
from rltrace.sync.recording import columns_of
from rltrace.sync.subscriber import Subscriber
from rltrace.sync.views import Views
from rltrace.trace.clock import node_id
from rltrace.trace.errors import WRONG_USAGE, RltraceError

_POLL_S = 0.0005


@CheckpointEngineRegistry.register("rltrace")
class RltraceCheckpointEngine(CheckpointEngineWithCache):  # type: ignore[misc]
    """`checkpoint_engine.backend=rltrace`. verl's buckets have no part in it."""

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        where: str = "",
        address: str = "",
        timeout_s: float = 600.0,
    ) -> None:
        """What `engine_kwargs.rltrace` says: `where` to publish (by default a name of the job's
        own), the `address` at which a relay of that host serves it to others
        (`tcp://host:port/policy`), how long rollout workers wait for what the trainer sends."""
        del bucket_size
        self.address = address
        self.timeout_s = timeout_s
        self._publisher = StreamPublisher(where or fresh_place("verl")) if is_master else None
        self._subscriber: Subscriber | None = None
        self._taken: Views | None = None
        self._where = ""
        self._counter = 0

    def prepare(self) -> dict[str, Any]:
        """Where this worker is; the first of the trainer's: where it publishes, and what next."""
        told: dict[str, Any] = {"node": node_id()}
        if self._publisher is not None:
            told |= {"where": self._publisher.where, "address": self.address}
            told |= {"counter": self._publisher.next_counter}
        return told

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Everyone is told where to find what the trainer's first rank publishes. Errors:
        `RltraceError` where a rollout worker is on another host and there is no `address`."""
        master, rollouts = metadata[0], metadata[actor_wg_world_size:]
        near = [told["node"] == master["node"] for told in rollouts]
        if not all(near) and not master["address"]:
            said = (
                f"{near.count(False)} of {len(near)} rollout workers are on another host than the"
            )
            how = (
                "name a relay: checkpoint_engine.engine_kwargs.rltrace.address=tcp://host:port/..."
            )
            raise RltraceError(f"{said} trainer; {how}", WRONG_USAGE)
        places = [master["where"] if is_near else master["address"] for is_near in near]
        return (
            {
                "where": [master["where"]] * actor_wg_world_size,
                "counter": [master["counter"]] * actor_wg_world_size,
            },
            {"where": places, "counter": [master["counter"]] * rollout_world_size},
        )

    def init_process_group(self, where: str, counter: int) -> None:
        """What the next update is; there is no group."""
        self._where, self._counter = where, counter

    async def send_weights(
        self, weights: Iterator[tuple[str, Any]], global_steps: int | None = None
    ) -> dict[str, float]:
        """The first rank publishes; the others take part in the gathering. Returns what verl logs
        with the step."""
        with Phases(moved.begun(self)) as phases:
            phases.begin("sync", "set up")  # from where verl's update began
            if self._publisher is None:
                phases.begin("sync", "take part", "gather")
                for _ in weights:
                    pass
                return {}
            phases.begin("sync", "send")
            number = -1 if global_steps is None else int(global_steps)
            manifest = self._publisher.publish(weights, number)
            moved.say(self, columns_of(manifest))
            return {"checkpoint_engine/payload_mbytes": manifest.bytes / (1 << 20)}

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, Any]]:
        """The tensors of the update, in place: they stay as they are until `finalize`, and must
        only be read."""
        with Phases() as phases:
            phases.begin("wait", "the trainer's weights")
            subscriber = await self._connected()
            await self._published(subscriber)
            handed = phases.begin("sync", "hand over", "load")
            self._release()
            self._taken = subscriber.lease()
            manifest = self._taken.manifest
            handed.set(version=manifest.number, bytes=manifest.bytes)
            for name in self._taken:
                yield name, _on_device(self._taken.torch(name))
            moved.say(self, columns_of(manifest))

    async def get_weights(self) -> AsyncIterator[tuple[str, Any]]:
        """The latest version that was published, whole, at any time; a tensor is good until the
        next is asked for, and must only be read. Errors: `RltraceError` before the first update."""
        if not self._where:
            raise RltraceError("no weights have been sent yet", WRONG_USAGE)
        subscriber = await self._connected()
        with subscriber.lease() as views:
            manifest = views.manifest
            with span("sync", "hand over", "load", version=manifest.number, bytes=manifest.bytes):
                for name in views:
                    yield name, _on_device(views.torch(name))

    def finalize(self) -> None:
        """Every worker has its weights: the slot may be written again."""
        self._release()

    def close(self) -> None:
        """Lets go of the policy; a process that ends does so, too."""
        self._release()
        if self._publisher is not None:
            self._publisher.close()
        if self._subscriber is not None:
            self._subscriber.close()

    async def _connected(self) -> Subscriber:
        """The trainer's policy, which opens with the first update."""
        if self._subscriber is None or self._subscriber.where != self._where:
            if self._subscriber is not None:
                self._subscriber.close()
            with span("wait", "the trainer's first weights"):
                self._subscriber = await asyncio.to_thread(
                    Subscriber.connect, self._where, self.timeout_s
                )
        return self._subscriber

    async def _published(self, subscriber: Subscriber) -> None:
        """Errors: `RltraceError` where the update is not there in time."""
        deadline = asyncio.get_running_loop().time() + self.timeout_s
        while True:
            latest = subscriber.latest()
            if latest is not None and latest.counter >= self._counter:
                return
            if asyncio.get_running_loop().time() >= deadline:
                subscriber.wait(self._counter, timeout_s=0)  # says what is missing
            await asyncio.sleep(_POLL_S)

    def _release(self) -> None:
        if self._taken is not None:
            self._taken.release()
            self._taken = None


def _on_device(tensor: Any) -> Any:
    """The tensor where verl's rollouts take it from: on their device; in place where they have
    none."""
    from verl.utils.device import get_device_id, get_torch_device

    return tensor.to(get_device_id()) if get_torch_device().is_available() else tensor
