"""What a learner publishes is what a rollout worker's model holds after a pull, bit for bit."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import as_strided
from safetensors.numpy import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard as Rows
from torch.distributed.tensor import distribute_tensor

from rltrace.sync import Publisher, Shard, Subscriber, layout_of
from rltrace.testing.inside.sync import BLOCK_BYTES, copying
from rltrace.testing.inside.sync import block_digests_digest as digest
from rltrace.testing.inside.trace import RltraceError
from tests.patience import PATIENCE_S
from tests.sync import pairs
from tests.sync.pairs import Pair, line, published, running, the_kernel


class Model(torch.nn.Module):
    """Tied head, odd sizes, several blocks, a tensor that spans them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(600, 257)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(257, 257) for _ in range(3))
        self.head = torch.nn.Linear(257, 600, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.tensor([seed]))


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())


def same(one: Any, other: Any) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and raw(x) == raw(y) for (a, x), (b, y) in pairs)


@pytest.fixture
def pair(where: str) -> Iterator[Pair]:
    with pairs.pair(where, Model(0)) as opened:
        assert opened[1].layout.bytes > 2 * BLOCK_BYTES
        yield opened


@pytest.mark.parametrize(
    ("threads", "verify", "streamed_from"),
    [(1, False, None), (3, True, None), (2, True, 0), (2, True, 1 << 40)],
)
def test_a_model_arrives_bit_for_bit(
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    verify: bool,
    streamed_from: int | None,
) -> None:
    """Weights larger than the caches are streamed past them."""
    if streamed_from is not None:
        monkeypatch.setattr(copying, "_STREAMED_FROM_BYTES", streamed_from)
    learner, rollout = Model(1), Model(2)
    with (
        Publisher.open(layout_of(learner), where, threads=threads) as publisher,
        Subscriber.connect(where, threads=threads) as subscriber,
    ):
        assert subscriber.latest() is None
        version = publisher.publish(learner, step=7)
        assert subscriber.pull_into(rollout, verify=verify) == version == subscriber.latest()
        assert subscriber.applied.step == 7
    assert same(learner, rollout)
    assert rollout.head.weight is rollout.embed.weight


def test_a_rank_takes_its_part_and_no_part_is_taken_for_a_whole(where: str) -> None:
    whole, half, rows = torch.randn(8, 6), torch.zeros(8, 3), torch.zeros(2, 6)
    with published(f"{where}-whole", {"w": whole}) as subscriber:
        subscriber.pull_into([("w", half, Shard((0, 3), (8, 6)))])
        subscriber.pull_into([("w", rows, Shard((6, 0), (8, 6)))])
        for shard, said in (
            (Shard((0, 4), (8, 6)), "does not lie in its whole"),
            (Shard((0, 0), (8, 7)), r"\[0, 0\] of \[8, 7\]"),
        ):
            with pytest.raises(RltraceError, match=said):
                subscriber.pull_into([("w", half, shard)])
    assert torch.equal(half, whole[:, 3:])
    assert torch.equal(rows, whole[6:])
    part, target = Shard((4, 0), (8, 6)), torch.zeros(4, 6)
    with published(where, [("w", torch.ones(4, 6), part)]) as subscriber:
        with pytest.raises(RltraceError, match=r"the part at \[4, 0\] of \[8, 6\]"):
            subscriber.pull_into({"w": target})
        assert not target.any()
        subscriber.pull_into([("w", target, part)])
    assert target.all()


def test_a_part_and_a_cast_are_taken_where_they_are_asked_for(where: str) -> None:
    full = {"w": torch.randn(64, 64), "embed": torch.randn(100, 64), "n": torch.arange(4)}
    padded = torch.full((128, 64), -1.0)
    half = {"embed": torch.zeros(100, 64, dtype=torch.bfloat16)}
    wide = {"embed": np.zeros((100, 64), np.float64)}
    with published(where, full) as subscriber:
        with pytest.raises(RltraceError, match="partial=True"):
            subscriber.pull_into({"embed": padded[:100]})
        subscriber.pull_into({"embed": padded[:100]}, partial=True)
        with pytest.raises(RltraceError, match="cast=True"):
            subscriber.pull_into(half, partial=True)
        subscriber.pull_into(half, partial=True, cast=True)
        subscriber.stage(wide, partial=True, cast=True)
        subscriber.commit()
        for unfit, said in (
            ({"nobody": torch.zeros(1)}, "nobody was not published"),
            ({"n": torch.zeros(4)}, r"n is float32 here and int64 .* published$"),
        ):
            with pytest.raises(RltraceError, match=said):
                subscriber.pull_into(unfit, partial=True, cast=True)
    assert torch.equal(padded[:100], full["embed"])
    assert (padded[100:] == -1).all()
    assert torch.equal(half["embed"], full["embed"].bfloat16())
    assert np.array_equal(wide["embed"], full["embed"].double().numpy())


def test_publishing_goes_on_behind_until_the_gate(pair: Pair) -> None:
    publisher, subscriber = pair
    learner, rollout, go = Model(1), Model(2), threading.Event()

    def slowly() -> Iterator[tuple[str, torch.Tensor]]:
        for item in learner.state_dict().items():
            yield item
            go.wait()

    publisher.publish_async({"x": torch.zeros(1)})
    with pytest.raises(RltraceError, match="x is not in the layout"):
        publisher.gate()
    publisher.publish_async(slowly(), step=3)
    assert subscriber.latest() is None
    go.set()
    version = publisher.gate()
    assert publisher.gate() is None
    assert subscriber.pull_into(rollout) == version
    assert same(learner, rollout)


def test_an_optimizer_passes_the_gate_before_it_steps(pair: Pair) -> None:
    publisher, subscriber = pair
    learner, rollout, before = Model(1), Model(2), Model(1)
    optimizer = torch.optim.SGD(learner.parameters(), lr=1.0)
    publisher.gate_before(optimizer)
    for parameter in learner.parameters():
        parameter.grad = torch.ones_like(parameter)
    publisher.publish_async(learner)
    optimizer.step()
    subscriber.pull_into(rollout)
    assert same(before, rollout)
    assert not same(learner, rollout)


def test_a_leased_version_is_read_in_place_and_is_a_safetensors_file(pair: Pair) -> None:
    publisher, subscriber = pair
    learner = Model(1)
    publisher.publish(learner, step=4)
    with subscriber.lease() as views:
        assert views.manifest.step == 4
        assert set(views) == set(learner.state_dict())
        assert np.array_equal(views["layers.0.bias"], learner.layers[0].bias.detach().numpy())
        assert raw(views.torch("head.weight")) == raw(learner.head.weight)
        with pytest.raises(ValueError, match="read-only"):
            views["steps"][0] = 1
        stored = load_file(views.path)
        assert set(stored) == set(learner.state_dict()) - {"head.weight"}
        assert np.array_equal(stored["embed.weight"], views["head.weight"])
    with pytest.raises(RltraceError, match="released"):
        views["steps"]


def _without(name: str) -> dict[str, torch.Tensor]:
    return {n: t for n, t in Model(1).state_dict().items() if n != name}


BAD = {
    "another shape": (_without("steps") | {"steps": torch.zeros(2).long()}, "steps has shape"),
    "another type": (_without("steps") | {"steps": torch.zeros(1)}, "steps is float32"),
    "one too few": (_without("layers.1.bias"), "layers.1.bias"),
    "one too many": (_without("") | {"lora": torch.zeros(1)}, "lora"),
    "no values": (_without("steps") | {"steps": torch.zeros(1, device="meta").long()}, "meta"),
}


@pytest.mark.parametrize("bad", BAD)
def test_weights_that_do_not_fit_are_neither_published_nor_written_to(pair: Pair, bad: str) -> None:
    publisher, subscriber = pair
    good = publisher.publish(Model(1))
    weights, said = BAD[bad]
    for given in (iter(weights.items()), weights):
        with pytest.raises(RltraceError, match=said):
            publisher.publish(given)
    rollout = Model(2)
    assert subscriber.pull_into(rollout, verify=True) == good
    assert same(rollout, Model(1))
    model = {name: torch.ones_like(tensor) for name, tensor in weights.items()}
    with pytest.raises(RltraceError, match=said):
        subscriber.pull_into(model)
    assert all((tensor == 1).all() for tensor in model.values() if not tensor.is_meta)
    assert not subscriber.poisoned
    assert publisher.publish(Model(3)) == subscriber.latest()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1, 4).expand(3, 4),
        torch.zeros(8).as_strided((3, 4), (2, 1)),
        as_strided(np.zeros(8, np.float32), (3, 4), (8, 4)),
    ],
)
def test_a_tensor_without_a_place_for_each_element_is_not_touched(where: str, tensor: Any) -> None:
    first = torch.zeros(5)
    with published(where, {"first": torch.ones(5), "w": torch.ones(3, 4)}) as subscriber:
        with pytest.raises(RltraceError, match=r"w .*share their memory"):
            subscriber.pull_into({"first": first, "w": tensor})
        assert not first.any()
        assert not subscriber.poisoned


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(4, 3).T,
        torch.zeros(6, 8)[::2, ::2],
        np.zeros((3, 4), np.float32)[::-1, ::-1],
        np.zeros((4, 6), np.float32).T[::2],
    ],
)
def test_a_tensor_with_gaps_or_in_another_order_is_filled(where: str, tensor: Any) -> None:
    weights = {"w": torch.arange(12.0).reshape(3, 4)}
    with published(where, weights) as subscriber:
        subscriber.pull_into({"w": tensor})
    assert np.array_equal(np.asarray(tensor), weights["w"].numpy())


def test_the_parts_of_an_fsdp_model_are_not_taken_for_the_whole(where: str) -> None:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        whole, target = torch.arange(12.0).reshape(4, 3), {"w": torch.zeros(4, 3)}
        sharded = {"w": distribute_tensor(whole, init_device_mesh("cpu", (1,)), [Rows(0)])}
        with pairs.pair(where, sharded) as (publisher, subscriber):
            with pytest.raises(RltraceError, match=r"w is a DTensor, .* full_tensor\(\)"):
                publisher.publish(sharded)
            publisher.publish((name, tensor.full_tensor()) for name, tensor in sharded.items())
            subscriber.pull_into(target)
            with pytest.raises(RltraceError, match=r"w is a DTensor, .* to_local\(\)"):
                subscriber.pull_into(sharded)
            assert not subscriber.poisoned
    finally:
        torch.distributed.destroy_process_group()
    assert torch.equal(target["w"], whole)


def test_a_step_is_a_whole_number_of_any_kind(pair: Pair) -> None:
    publisher, subscriber = pair
    good = None
    for step in (5, np.int64(5), torch.tensor(5)):
        good = publisher.publish(Model(1), step)
        with subscriber.lease() as views:
            assert views.manifest.step == 5
    bad: Any
    for bad in ("5", 1.5, None, 1 << 63, -2):
        for publish in (publisher.publish, publisher.publish_async):
            with pytest.raises(RltraceError, match="step takes a"):
                publish(Model(1), bad)
    assert subscriber.latest() == good


def test_waiting_for_a_version_ends(pair: Pair) -> None:
    publisher, worker = pair
    held = Model(2)
    with pytest.raises(RltraceError, match="first version"):
        worker.wait(timeout_s=0)
    first = publisher.publish(Model(1))
    assert worker.wait(1, timeout_s=0) == worker.wait(first, timeout_s=0) == first
    assert worker.pull_into(held, newer=True) == first
    assert worker.pull_into(held, at_least=np.int64(1)) == first
    for wish, said in (
        ({"at_least": 2}, r"version 2 .* latest is"),
        ({"newer": True}, "a newer version"),
        ({"at_least": "1"}, "takes a version or a counter"),
        ({"at_least": 1.5}, "takes a version or a counter"),
    ):
        with pytest.raises(RltraceError, match=said):
            worker.pull_into(held, timeout_s=0.05, **wish)
    later = threading.Timer(0.2, publisher.publish, [Model(1)])
    later.start()
    assert worker.pull_into(held, newer=True).counter == 2
    later.join()
    worker.close()
    with pytest.raises(RltraceError, match="was closed here"):
        worker.pull_into(held)
    publisher.close()
    with pytest.raises(RltraceError, match="it was closed"):
        publisher.publish(held)
    with pytest.raises(RltraceError, match="shm://nowhere"):
        Subscriber.connect("shm://nowhere", timeout_s=0)


def test_the_compiled_copy_gives_what_memcpy_gives_and_its_digest_is_that_of_xxhash() -> None:
    library = the_kernel()
    source = np.random.default_rng(0).integers(0, 256, BLOCK_BYTES + 64, dtype=np.uint8)
    target = np.zeros(BLOCK_BYTES + 128, dtype=np.uint8)
    start = -target.ctypes.data % 16
    plain = (0, 8192), (0, 8191), (1, 777), (3, 5), (15, 64), (16, 65), (7, 0)
    hashed = 241, 256, 257, 1023, 1024, 1025, 1088, 2049, BLOCK_BYTES - 1, BLOCK_BYTES
    cases = [(at, length, offset) for at, length in plain for offset in (0, 1, 16, 63)]
    for at, length, offset in [*cases, *((1, length, None) for length in hashed)]:
        target[:] = 0
        begin, data = start + (offset or 0), source[at : at + length]
        given = target.ctypes.data + begin, data.ctypes.data, length
        if offset is None:
            assert library.rltrace_copy_hashed(*given) == digest(data.data), length
        else:
            library.rltrace_copy(*given)
        assert np.array_equal(target[begin : begin + length], data), length
        assert not target[:begin].any()
        assert not target[begin + length :].any()


PULLER = """
import sys
import numpy as np
from rltrace.sync import Subscriber
held = {"w": np.zeros(1 << 22, np.int32)}
worker = Subscriber.connect(sys.argv[1], threads=1)
while True:
    worker.pull_into(held)
    print("pulled", flush=True)
"""


def test_a_worker_that_is_stopped_while_it_checks_holds_up_nobody(where: str) -> None:
    """As a debugger stops one, or a freezer, at any place of its pulls."""
    state, held = ({"w": np.zeros(1 << 22, np.int32)} for _ in range(2))
    with pairs.pair(where, state) as (publisher, worker):
        publisher.publish(state)
        with running(PULLER, where) as other:
            for number in range(1, 20):
                assert line(other) == "pulled"
                time.sleep(number % 7 / 1000)
                other.send_signal(signal.SIGSTOP)
                state["w"][:] = number
                assert publisher.publish(state) is not None
                worker.pull_into(held, newer=True, timeout_s=PATIENCE_S)
                assert (held["w"] == number).all()
                other.send_signal(signal.SIGCONT)
