"""rltrace's engine behind verl's own interface of checkpoint engines: bytes and versions."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rltrace.sync import DamagedError, Publisher, Relay, Subscriber, layout_of
from rltrace.testing.inside.trace import RltraceError

BASE = pytest.importorskip("verl.checkpoint_engine.base", reason="make test-verl installs verl")
verl_engine = pytest.importorskip("rltrace.plugins.verl_engine")

BYTES = 2 * 4 * 6000 + 2 * 7


def weights(factor: float) -> dict[str, torch.Tensor]:
    """A model's, of which one is tied: verl hands it out under both names."""
    embed = factor * torch.arange(6000, dtype=torch.float32).view(60, 100)
    norm = torch.full((7,), factor, dtype=torch.bfloat16)
    return {"embed": embed, "norm": norm, "head": embed}


def handed_out(factor: float) -> Iterator[tuple[str, torch.Tensor]]:
    """As verl's engines do: one tensor after the other, gathered into memory that is used again."""
    buffer = torch.empty(6000)
    for name, tensor in weights(factor).items():
        whole = buffer.view(tensor.dtype)[: tensor.numel()].view(tensor.shape)
        yield name, whole.copy_(tensor)


class Group:
    """A trainer of two ranks and two rollout workers, as verl's manager drives them."""

    def __init__(self, **settings: Any) -> None:
        registry = BASE.CheckpointEngineRegistry
        self.kind = registry.get("rltrace")
        self.actors, self.rollouts = (
            [
                registry.new("rltrace", bucket_size=1, is_master=first and not rank, **settings)
                for rank in range(2)
            ]
            for first in (True, False)
        )

    def prepare(self) -> None:
        """What the manager does before each update."""
        metadata = [engine.prepare() for engine in (*self.actors, *self.rollouts)]
        for engines, arguments in zip(
            (self.actors, self.rollouts), self.kind.build_topology(2, 2, metadata), strict=True
        ):
            for rank, engine in enumerate(engines):
                engine.init_process_group(**{name: each[rank] for name, each in arguments.items()})

    def update(self, factor: float, step: int) -> tuple[list[Any], list[dict[str, torch.Tensor]]]:
        """One update: what was sent, and what each rollout worker has afterwards."""

        async def both() -> tuple[list[Any], list[dict[str, torch.Tensor]]]:
            taking = [asyncio.create_task(self._take(engine, step)) for engine in self.rollouts]
            await asyncio.sleep(0)  # they wait for what is not there yet
            sent = [
                await engine.send_weights(handed_out(factor), global_steps=step)
                for engine in self.actors
            ]
            return sent, [await task for task in taking]

        self.prepare()
        sent, taken = asyncio.run(both())
        for engine in (*self.actors, *self.rollouts):
            engine.finalize()
        return sent, taken

    def close(self) -> None:
        for engine in (*self.actors, *self.rollouts):
            engine.close()

    async def _take(self, engine: Any, step: int) -> dict[str, torch.Tensor]:
        taken = {name: each async for name, each in engine.receive_weights(global_steps=step)}
        return {name: tensor.clone() for name, tensor in taken.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def place() -> str:
    return f"shm://verl-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker sees the trainer's memory, as on another host."""
    monkeypatch.setattr(verl_engine, "is_seen", lambda where: False)


def check_updates(group: Group) -> None:
    for step, factor in enumerate((1.0, 0.5, 3.0)):
        sent, taken = group.update(factor, step)
        assert sent == [{"checkpoint_engine/payload_mbytes": BYTES / (1 << 20)}, {}]
        assert [same(each, weights(factor)) for each in taken] == [True, True]
    group.close()


def test_every_rollout_worker_has_each_update_bit_for_bit() -> None:
    check_updates(Group())


@pytest.mark.usefixtures("far")
def test_workers_of_another_host_have_the_weights_from_a_relay() -> None:
    with pytest.raises(RltraceError, match=r"engine_kwargs\.rltrace\.address"):
        Group().prepare()
    where = place()
    with Relay.serve(where) as relay:
        check_updates(Group(where=where, address=relay.address))


def test_the_cache_has_the_latest_update_at_any_time() -> None:
    group = Group()

    async def cached() -> dict[str, torch.Tensor]:
        return {n: tensor.clone() async for n, tensor in group.rollouts[0].get_weights()}

    with pytest.raises(RltraceError):  # none yet
        asyncio.run(cached())
    group.update(2.0, step=7)
    assert same(asyncio.run(cached()), weights(2.0))
    assert same(asyncio.run(cached()), weights(2.0))


def test_a_tensor_that_the_first_update_lacked_is_named_and_nothing_is_sent() -> None:
    group = Group()
    group.update(1.0, step=0)
    group.prepare()
    with pytest.raises(RltraceError, match="new is not in the layout"):
        asyncio.run(group.actors[0].send_weights(iter([("new", torch.zeros(3))]), global_steps=1))


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount memory of its own")
def test_a_container_with_memory_of_its_own_is_another_host() -> None:
    where = place()
    asks = f"from rltrace.testing.inside.plugins import is_seen; print(is_seen({where!r}))"
    own = f'mount -t tmpfs tmpfs /dev/shm && exec {sys.executable} -c "{asks}"'
    group = Group(where=where)
    group.prepare()
    answers = [
        subprocess.run(words, capture_output=True, text=True, check=False)
        for words in ([sys.executable, "-c", asks], ["unshare", "-m", "sh", "-c", own])
    ]
    group.close()
    if answers[1].returncode:
        pytest.skip(f"no memory of its own can be mounted here: {answers[1].stderr}")
    assert [answer.stdout for answer in answers] == ["True\n", "False\n"]


def test_the_version_that_was_sent_is_taken_and_none_that_lay_there() -> None:
    """Of a job before, by the same name: it is there until the trainer's first update."""
    where, old = place(), list(weights(0.0).items())
    with Publisher.open(layout_of(old), where) as before:
        for _ in range(3):
            before.publish(old)
        with Subscriber.connect(where):  # which keeps it
            before.close()
            check_updates(Group(where=where))


def test_nothing_of_a_damaged_update_is_handed_over() -> None:
    group = Group()
    group.update(1.0, 0)
    group.prepare()

    async def damaged() -> list[str]:
        await group.actors[0].send_weights(handed_out(2.0), global_steps=1)
        for slot in range(2):
            group.actors[0]._publisher._publisher.arena.control.digests(slot)[:] += 1
        return [name async for name, _ in group.rollouts[0].receive_weights(global_steps=1)]

    with pytest.raises(DamagedError):
        asyncio.run(damaged())
    group.close()


@pytest.mark.parametrize("version", ["0.7.1", "0.8.0", "0.9.1"])
def test_it_has_what_every_version_of_the_interface_calls(version: str) -> None:
    folder = os.environ.get("RLTRACE_VERL_SOURCES")
    if folder is None:
        pytest.skip("make test-verl has the sources of each version")
    tree = ast.parse((Path(folder) / version / "verl/checkpoint_engine/base.py").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    engine = BASE.CheckpointEngineRegistry.get("rltrace")
    for name in ("CheckpointEngine", "CheckpointEngineWithCache"):
        for method in classes[name].body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                own = inspect.signature(getattr(engine, method.name))
                wanted = {argument.arg for argument in method.args.args} - {"self", "cls"}
                assert method.name == "build_topology" or wanted <= own.parameters.keys()
