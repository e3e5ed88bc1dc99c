"""verl's weights through rltrace.sync: a checkpoint engine with a cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from verl.checkpoint_engine.base import CheckpointEngineRegistry, CheckpointEngineWithCache

from rltrace.hooks import weight_moves
from rltrace.hooks.span_api import Phases, span
from rltrace.plugins.streaming import StreamPublisher, fresh_place, is_seen
from rltrace.sync.memory.arena import Lease
from rltrace.sync.recording import columns_of
from rltrace.sync.subscriber import Subscriber
from rltrace.sync.version import Version
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage

_POLL_S = 0.0005


@CheckpointEngineRegistry.register("rltrace")
class RltraceCheckpointEngine(CheckpointEngineWithCache):  # type: ignore[misc]
    """`checkpoint_engine.backend=rltrace`; verl's buckets have no part in it. Each worker checks
    the version before it hands over a tensor. verl asks each one once an update, so they cannot
    agree before one loads: what fails at one ends the update, and verl's job with it."""

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        where: str = "",
        address: str = "",
        timeout_s: float = 600.0,
    ) -> None:
        """What `engine_kwargs.rltrace` says: `where` to publish (default: a name of its own), the
        `address` of a relay there, how long rollout workers wait for the trainer."""
        del bucket_size
        self.address = address
        self.timeout_s = timeout_s
        self._publisher = StreamPublisher(where or fresh_place("verl")) if is_master else None
        self._subscriber: Subscriber | None = None
        self._taken: Lease | None = None
        self._where = self._run = ""
        self._after: Version | None = None

    def prepare(self) -> dict[str, Any]:
        """Of the trainer's first rank: where it publishes, and which version comes next."""
        if self._publisher is None:
            return {}
        told = {"where": self._publisher.where, "address": self.address}
        return told | {"run": self._publisher.run, "after": self._publisher.last}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        told = metadata[0]
        sizes = (actor_wg_world_size, rollout_world_size)
        actors, rollouts = ({name: [said] * size for name, said in told.items()} for size in sizes)
        return actors, rollouts

    def init_process_group(self, where: str, address: str, run: str, after: str) -> None:
        """How the next update comes. Errors: `RltraceError`: other memory and no `address`."""
        self._run, self._after = run, Version.parse(after) if after else None
        self._where = where if is_seen(where) else address
        if not self._where:
            said = f"{where} is not in the memory that this worker sees (another host or container)"
            how = "checkpoint_engine.engine_kwargs.rltrace.address=tcp://host:port/..."
            raise WrongUsage(f"{said}, and nobody serves it: name a relay, {how}")

    async def send_weights(
        self, weights: Iterator[tuple[str, Any]], global_steps: int | None = None
    ) -> dict[str, float]:
        """The first rank publishes, the others gather. Returns what verl logs with the step."""
        with Phases(weight_moves.begun(self)) as phases:
            phases.begin("sync", "set up")  # from where verl's update began
            if self._publisher is None:
                phases.begin("sync", "take part", "gather")
                for _ in weights:
                    pass
                return {}
            phases.begin("sync", "send")
            number = -1 if global_steps is None else int(global_steps)
            manifest = self._publisher.publish(weights, number)
            weight_moves.say(self, columns_of(manifest))
            return {"checkpoint_engine/payload_mbytes": manifest.bytes / (1 << 20)}

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, Any]]:
        """The tensors of the update, in place until `finalize`: they must only be read."""
        with Phases() as phases:
            phases.begin("wait", "the trainer's weights")
            subscriber = await self._connected()
            version = await self._published(subscriber)
            self.finalize()
            self._taken = await asyncio.to_thread(subscriber.lease, version)
            handed = phases.begin("sync", "hand over", "load")
            manifest = self._taken.manifest
            handed.set(version=manifest.number, bytes=manifest.bytes)
            for name in self._taken:
                yield name, _on_device(self._taken.torch(name))
            weight_moves.say(self, columns_of(manifest))

    async def get_weights(self) -> AsyncIterator[tuple[str, Any]]:
        """The latest version; each tensor good until the next. Errors: `RltraceError` if none."""
        if not self._where:
            raise WrongUsage("no weights have been sent yet")
        subscriber = await self._connected()
        with subscriber.lease() as views:
            manifest = views.manifest
            with span("sync", "hand over", "load", version=manifest.number, bytes=manifest.bytes):
                for name in views:
                    yield name, _on_device(views.torch(name))

    def finalize(self) -> None:
        """Every worker has its weights: the slot may be written again."""
        if self._taken is not None:
            self._taken.release()
            self._taken = None

    def close(self) -> None:
        self.finalize()
        if self._publisher is not None:
            self._publisher.close()
        if self._subscriber is not None:
            self._subscriber.close()

    async def _connected(self) -> Subscriber:
        if self._subscriber is None or self._subscriber.where != self._where:
            if self._subscriber is not None:
                self._subscriber.close()
            with span("wait", "the trainer's first weights"):
                connects = asyncio.to_thread(Subscriber.connect, self._where, self.timeout_s)
                self._subscriber = await connects
        return self._subscriber

    async def _published(self, subscriber: Subscriber) -> Version:
        """The version of the update. Errors: `RltraceError` where it is not there in time."""
        deadline = asyncio.get_running_loop().time() + self.timeout_s
        while True:
            latest = subscriber.latest()
            is_ours = latest is not None and latest.run == self._run
            if latest is not None and is_ours and (self._after is None or latest > self._after):
                return latest
            if asyncio.get_running_loop().time() >= deadline:
                said = f"the trainer's update did not come within {self.timeout_s:g} s"
                raise RltraceError(f"{said}: {subscriber.error or 'none began'}", CANNOT_TELL)
            await asyncio.sleep(_POLL_S)


def _on_device(tensor: Any) -> Any:
    """On the device of verl's rollouts; in place where they have none."""
    from verl.utils.device import get_device_id, get_torch_device

    return tensor.to(get_device_id()) if get_torch_device().is_available() else tensor
