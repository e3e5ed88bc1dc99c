"""What a learner publishes is what a rollout worker's model holds after a pull, bit for bit."""

from __future__ import annotations

import resource
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

from rltrace.sync import Publisher, Shard, Subscriber, copying, layout_of
from rltrace.sync.blocks import BLOCK_BYTES, digest
from rltrace.trace.errors import RltraceError
from tests.patience import PATIENCE_S
from tests.sync import pairs
from tests.sync.compiling import the_kernel
from tests.sync.pairs import Pair, line, published, running


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


def test_master_weights_are_cast_on_the_way(where: str) -> None:
    learner, rollout = Model(1), Model(2).bfloat16()
    with Publisher.open(layout_of(learner, dtype="bfloat16"), where) as publisher:
        publisher.publish(learner)
        with Subscriber.connect(where) as subscriber:
            subscriber.pull_into(rollout, verify=True)
    assert same(Model(1).bfloat16(), rollout)


def test_a_stream_of_tensors_need_hold_one_at_a_time_and_no_tied_ones(pair: Pair) -> None:
    publisher, subscriber = pair
    learner, rollout = Model(1), Model(2)
    state = reversed(learner.state_dict().items())
    publisher.publish((name, tensor.clone()) for name, tensor in state)
    subscriber.pull_into(rollout, verify=True)
    assert same(learner, rollout)


def test_a_rank_takes_its_part_of_what_was_published_whole(where: str) -> None:
    whole = torch.randn(8, 6)
    half, rows = torch.zeros(8, 3), torch.zeros(2, 6)
    with published(where, {"w": whole}) as subscriber:
        subscriber.pull_into([("w", half, Shard((0, 3), (8, 6)))])
        subscriber.pull_into([("w", rows, Shard((6, 0), (8, 6)))])
        with pytest.raises(RltraceError, match="does not lie in its whole"):
            subscriber.pull_into([("w", half, Shard((0, 4), (8, 6)))])
        with pytest.raises(RltraceError, match=r"\[0, 0\] of \[8, 7\]"):
            subscriber.pull_into([("w", half, Shard((0, 0), (8, 7)))])
    assert torch.equal(half, whole[:, 3:])
    assert torch.equal(rows, whole[6:])


def test_what_was_published_as_a_part_is_not_taken_for_a_whole(where: str) -> None:
    target = torch.zeros(4, 6)
    with published(where, [("w", torch.ones(4, 6), Shard((4, 0), (8, 6)))]) as subscriber:
        with pytest.raises(RltraceError, match=r"the part at \[4, 0\] of \[8, 6\]"):
            subscriber.pull_into({"w": target})
        assert not target.any()
        subscriber.pull_into([("w", target, Shard((4, 0), (8, 6)))])
    assert target.all()


def test_publishing_goes_on_behind_until_the_gate(pair: Pair) -> None:
    publisher, subscriber = pair
    learner, rollout, go = Model(1), Model(2), threading.Event()

    def slowly() -> Iterator[tuple[str, torch.Tensor]]:
        for item in learner.state_dict().items():
            yield item
            go.wait()

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


def test_what_goes_wrong_behind_is_raised_at_the_gate(pair: Pair) -> None:
    publisher, subscriber = pair
    publisher.publish_async({"x": torch.zeros(1)})
    with pytest.raises(RltraceError, match="x is not in the layout"):
        publisher.gate()
    assert publisher.publish(Model(1)) == subscriber.latest()


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
    assert all(bool((tensor == 1).all()) for tensor in model.values())
    assert not subscriber.poisoned
    assert publisher.publish(Model(3)) == subscriber.latest()


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(1, 4).expand(3, 4), "share their memory"),
        (torch.zeros(8).as_strided((3, 4), (2, 1)), "share their memory"),
        (as_strided(np.zeros(8, np.float32), (3, 4), (8, 4)), "share their memory"),
        (torch.zeros(3, 4, device="meta"), "on the meta device"),
    ],
)
def test_a_tensor_without_a_place_for_each_element_is_not_touched(
    where: str, tensor: Any, said: str
) -> None:
    first = torch.zeros(5)
    with published(where, {"first": torch.ones(5), "w": torch.ones(3, 4)}) as subscriber:
        with pytest.raises(RltraceError, match=f"w .*{said}"):
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


def test_a_tensor_without_values_is_not_published(where: str) -> None:
    weights = {"w": torch.zeros(4, device="meta")}
    with Publisher.open(layout_of(weights), where) as publisher:
        for given in (weights, iter(weights.items())):
            with pytest.raises(RltraceError, match="w is on the meta device"):
                publisher.publish(given)
        assert publisher.publish({"w": torch.zeros(4)}) is not None


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
        good = publisher.publish(Model(1), step)  # type: ignore[arg-type]
        with subscriber.lease() as views:
            assert views.manifest.step == 5
    bad: Any
    for bad in ("5", 1.5, None, 1 << 63, -2):
        for publish in (publisher.publish, publisher.publish_async):
            with pytest.raises(RltraceError, match="step takes a"):
                publish(Model(1), bad)
    assert subscriber.latest() == good


def test_tensors_that_are_no_longer_tied_are_not_published(pair: Pair) -> None:
    publisher, _ = pair
    learner = Model(1)
    learner.head.weight = torch.nn.Parameter(learner.head.weight.detach().clone())
    assert publisher.publish(learner) is not None  # equal as yet
    with torch.no_grad():
        learner.head.weight[-1, -1] += 1
    with pytest.raises(RltraceError, match=r"embed.weight and head.weight are no longer tied"):
        publisher.publish(learner)


def test_waiting_for_a_version_ends_in_a_sentence(pair: Pair) -> None:
    publisher, subscriber = pair
    with pytest.raises(RltraceError, match="first version"):
        subscriber.wait(timeout_s=0)
    version = publisher.publish(Model(1))
    assert subscriber.wait(1, timeout_s=0) == subscriber.wait(version, timeout_s=0) == version
    with pytest.raises(RltraceError, match=r"version 2 .* latest is"):
        subscriber.pull_into(Model(1), at_least=2, timeout_s=0)
    with pytest.raises(RltraceError, match="shm://nowhere"):
        Subscriber.connect("shm://nowhere", timeout_s=0)


def test_no_update_allocates_memory_after_the_first(where: str) -> None:
    weights, target = ({"w": np.zeros(16 << 20, dtype=np.uint8)} for _ in range(2))
    with pairs.pair(where, weights) as (publisher, subscriber):
        for turn in range(13):
            publisher.publish(weights)
            subscriber.pull_into(target, verify=True)
            if turn == 2:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    pages = 10 * 2 * len(weights["w"]) // resource.getpagesize()
    assert faults < pages / 100


def test_the_compiled_copy_gives_what_memcpy_gives() -> None:
    library = the_kernel()
    source = np.random.default_rng(0).integers(0, 256, 9000, dtype=np.uint8)
    for start, length in ((0, 8192), (0, 8191), (1, 777), (3, 5), (15, 64), (16, 65), (7, 0)):
        for offset in (0, 1, 16, 63):
            target, expected = np.zeros_like(source), np.zeros_like(source)
            expected[offset : offset + length] = source[start : start + length]
            address = target.ctypes.data + offset
            library.rltrace_copy(address, source.ctypes.data + start, length)
            assert np.array_equal(target, expected)


def test_the_compiled_digest_is_that_of_xxhash() -> None:
    library = the_kernel()
    source = np.random.default_rng(0).integers(0, 256, BLOCK_BYTES + 1, dtype=np.uint8)
    target = np.zeros(BLOCK_BYTES + 64, dtype=np.uint8)
    start = -target.ctypes.data % 16
    for length in (241, 256, 257, 1023, 1024, 1025, 1088, 2049, BLOCK_BYTES - 1, BLOCK_BYTES):
        target[:] = 0
        address, data = target.ctypes.data + start, source[1 : length + 1]
        found = library.rltrace_copy_hashed(address, data.ctypes.data, length)
        assert found == digest(data.data), length
        assert np.array_equal(target[start : start + length], data), length
        assert not target[start + length :].any()


def test_what_is_no_version_is_refused_and_so_is_a_pull_after_the_end(where: str) -> None:
    state = {"w": np.zeros(9)}
    with pairs.pair(where, state) as (publisher, worker):
        version = publisher.publish(state)
        assert worker.pull_into(state, at_least=np.int64(1)) == version
        given: Any
        for given in ("1", 1.5):
            with pytest.raises(RltraceError, match="takes a version or a counter"):
                worker.pull_into(state, at_least=given)
        worker.close()
        with pytest.raises(RltraceError, match="was closed here"):
            worker.pull_into(state)
    with pytest.raises(RltraceError, match="it was closed"):
        publisher.publish(state)


def test_the_next_version_can_be_waited_for(where: str) -> None:
    state = {"w": np.zeros(9)}
    with pairs.pair(where, state) as (publisher, worker):
        first = publisher.publish(state)
        assert worker.pull_into(state, newer=True) == first
        assert worker.pull_into(state) == first
        with pytest.raises(RltraceError, match="a newer version"):
            worker.pull_into(state, newer=True, timeout_s=0.05)
        later = threading.Timer(0.2, publisher.publish, [state])
        later.start()
        version = worker.pull_into(state, newer=True)
        later.join()
        assert version.counter == 2


def test_a_worker_says_what_it_waits_for_and_moves_to_the_next_learner(where: str) -> None:
    """`benchmarks.sync_restarts` does the same with killed processes, relays and lost hosts."""
    held, state = {"w": np.zeros(9)}, {"w": np.ones(9)}
    with pairs.pair(where, state) as (publisher, worker):
        first = publisher.publish(state)
        assert worker.pull_into(held) == first
        assert (worker.behind_s, worker.error) == (0.0, None)
        publisher.close()
        assert worker.behind_s > 0
        assert "no learner" in str(worker.error)
        assert worker.pull_into(held) == first
        assert worker.behind_s > 0
        state["w"] += 1
        with Publisher.open(layout_of(state), where) as again:
            second = again.publish(state)
            assert worker.pull_into(held, newer=True) == second
            assert second > first
            assert (worker.behind_s, worker.error) == (0.0, None)
            assert held["w"][0] == 2


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
