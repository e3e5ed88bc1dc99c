"""What a learner publishes is what a rollout worker's model holds after a pull, bit for bit."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
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
from rltrace.testing.inside.sync import blocks_digest as digest
from rltrace.testing.inside.trace import RltraceError
from tests.patience import PATIENCE_S
from tests.sync.compiling import the_kernel


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
def pair(where: str) -> Iterator[tuple[Publisher, Subscriber]]:
    layout = layout_of(Model(0))
    assert layout.bytes > 2 * BLOCK_BYTES
    with Publisher.open(layout, where) as publisher, Subscriber.connect(where) as subscriber:
        yield publisher, subscriber


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("verify", [False, True])
def test_a_model_arrives_bit_for_bit(where: str, threads: int, verify: bool) -> None:
    learner, rollout = Model(1), Model(2)
    layout = layout_of(learner)
    with (
        Publisher.open(layout, where, threads=threads) as publisher,
        Subscriber.connect(where, threads=threads) as subscriber,
    ):
        assert subscriber.latest() is None
        version = publisher.publish(learner, step=7)
        assert subscriber.pull_into(rollout, verify=verify) == version == subscriber.latest()
        assert subscriber.applied is not None
        assert subscriber.applied.step == 7
    assert same(learner, rollout)
    assert rollout.head.weight is rollout.embed.weight


def test_every_kind_of_tensor_arrives_bit_for_bit(where: str) -> None:
    generator = torch.Generator().manual_seed(0)
    source: dict[str, Any] = {
        "bfloat16": torch.randn(3, 3, generator=generator).bfloat16(),
        "float8": torch.randn(5, generator=generator).to(torch.float8_e4m3fn),
        "strange": torch.tensor([float("nan"), float("inf"), 1e-45, -0.0]),
        "transposed": torch.randn(400, 600, generator=generator).T,
        "every other": torch.arange(10)[::2],
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 4),
        "flags": torch.tensor([True, False]),
        "numpy": np.arange(7, dtype=np.int16),
        "numpy transposed": np.arange(6.0).reshape(2, 3).T,
    }
    target = {
        name: torch.zeros_like(t) if isinstance(t, torch.Tensor) else np.zeros_like(t)
        for name, t in source.items()
    }
    target["strange"] = torch.zeros(8)[::2]
    with Publisher.open(layout_of(source), where) as publisher:
        publisher.publish(source)
        with Subscriber.connect(where) as subscriber:
            subscriber.pull_into(target, verify=True)
    for name, tensor in source.items():
        if isinstance(tensor, torch.Tensor):
            assert raw(target[name]) == raw(tensor), name
        else:
            assert np.array_equal(target[name], tensor), name


def test_master_weights_are_cast_on_the_way(where: str) -> None:
    learner, rollout = Model(1), Model(2).bfloat16()
    layout = layout_of(learner, dtype="bfloat16")
    for weights in (learner, learner.state_dict().items()):
        with Publisher.open(layout, where) as publisher:
            publisher.publish(weights)
            with Subscriber.connect(where) as subscriber:
                subscriber.pull_into(rollout, verify=True)
        assert same(Model(1).bfloat16(), rollout)
        with torch.no_grad():
            rollout.embed.weight.zero_()


def test_a_stream_of_tensors_need_hold_one_at_a_time_and_no_tied_ones(where: str) -> None:
    learner, rollout = Model(1), Model(2)

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in reversed(learner.state_dict().items()):
            yield name, tensor.clone()

    with Publisher.open(layout_of(learner), where) as publisher:
        publisher.publish(gathered())
        with Subscriber.connect(where) as subscriber:
            subscriber.pull_into(rollout, verify=True)
    assert same(learner, rollout)


def test_a_rank_takes_its_part_of_what_was_published_whole(where: str) -> None:
    whole = torch.randn(8, 6)
    half, rows = torch.zeros(8, 3), torch.zeros(2, 6)
    with Publisher.open(layout_of({"w": whole}), where) as publisher:
        publisher.publish({"w": whole})
        with Subscriber.connect(where) as subscriber:
            subscriber.pull_into([("w", half, Shard((0, 3), (8, 6)))])
            subscriber.pull_into([("w", rows, Shard((6, 0), (8, 6)))])
            with pytest.raises(RltraceError, match="does not lie in its whole"):
                subscriber.pull_into([("w", half, Shard((0, 4), (8, 6)))])
            with pytest.raises(RltraceError, match=r"the part at \[0, 0\] of \[8, 7\], here"):
                subscriber.pull_into([("w", half, Shard((0, 0), (8, 7)))])
    assert torch.equal(half, whole[:, 3:])
    assert torch.equal(rows, whole[6:])


def test_what_was_published_as_a_part_is_not_taken_for_a_whole(where: str) -> None:
    part = [("w", torch.ones(4, 6), Shard((4, 0), (8, 6)))]
    target = torch.zeros(4, 6)
    with Publisher.open(layout_of(part), where) as publisher:
        publisher.publish(part)
        with Subscriber.connect(where) as subscriber:
            said = r"shape \[4, 6\] here and shape \[4, 6\], the part at \[4, 0\] of \[8, 6\],"
            with pytest.raises(RltraceError, match=said):
                subscriber.pull_into({"w": target})
            assert not target.any()
            subscriber.pull_into([("w", target, Shard((4, 0), (8, 6)))])
    assert target.all()


def test_publishing_goes_on_behind_until_the_gate(pair: tuple[Publisher, Subscriber]) -> None:
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
    assert version is not None
    assert publisher.gate() is None
    assert subscriber.pull_into(rollout) == version
    assert same(learner, rollout)


def test_an_optimizer_passes_the_gate_before_it_steps(pair: tuple[Publisher, Subscriber]) -> None:
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


def test_what_goes_wrong_behind_is_raised_at_the_gate(pair: tuple[Publisher, Subscriber]) -> None:
    publisher, subscriber = pair
    publisher.publish_async({"x": torch.zeros(1)})
    with pytest.raises(RltraceError, match="x is not in the layout"):
        publisher.gate()
    assert publisher.publish(Model(1)) == subscriber.latest()


def test_a_leased_version_is_read_in_place_and_is_a_safetensors_file(
    pair: tuple[Publisher, Subscriber],
) -> None:
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
@pytest.mark.parametrize("stream", [False, True])
def test_weights_that_do_not_fit_are_not_published(
    pair: tuple[Publisher, Subscriber], bad: str, stream: bool
) -> None:
    publisher, subscriber = pair
    good = publisher.publish(Model(1))
    weights, said = BAD[bad]
    with pytest.raises(RltraceError, match=said):
        publisher.publish(iter(weights.items()) if stream else weights)
    rollout = Model(2)
    assert subscriber.pull_into(rollout, verify=True) == good
    assert same(rollout, Model(1))
    assert publisher.publish(Model(3)) == subscriber.latest()


@pytest.mark.parametrize("bad", BAD)
def test_a_model_that_does_not_fit_is_not_touched(
    pair: tuple[Publisher, Subscriber], bad: str
) -> None:
    publisher, subscriber = pair
    publisher.publish(Model(1))
    model, said = BAD[bad]
    model = {name: torch.ones_like(tensor) for name, tensor in model.items()}
    with pytest.raises(RltraceError, match=said):
        subscriber.pull_into(model)
    assert all(bool((tensor == 1).all()) for tensor in model.values())
    assert not subscriber.poisoned


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(1, 4).expand(3, 4), "elements that share their memory"),
        (torch.zeros(8).as_strided((3, 4), (2, 1)), "elements that share their memory"),
        (as_strided(np.zeros(8, np.float32), (3, 4), (8, 4)), "elements that share their memory"),
        (torch.zeros(3, 4, device="meta"), "on the meta device"),
    ],
)
def test_a_tensor_without_a_place_for_each_element_is_not_touched(
    where: str, tensor: Any, said: str
) -> None:
    weights = {"first": torch.ones(5), "w": torch.ones(3, 4)}
    with Publisher.open(layout_of(weights), where) as publisher:
        publisher.publish(weights)
        with Subscriber.connect(where) as subscriber:
            first = torch.zeros(5)
            with pytest.raises(RltraceError, match=f"do not fit: w .*{said}"):
                subscriber.pull_into({"first": first, "w": tensor})
            assert not first.any()
            assert not subscriber.poisoned


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(4, 3).T,
        torch.zeros(6, 8)[::2, ::2],
        torch.zeros(2, 3, 4)[1:].expand(1, 3, 4)[0].flip(0),
        np.zeros((3, 4), np.float32)[::-1, ::-1],
        np.zeros((4, 6), np.float32).T[::2],
    ],
)
def test_a_tensor_with_gaps_or_in_another_order_is_filled(where: str, tensor: Any) -> None:
    weights = {"w": torch.arange(12.0).reshape(3, 4)}
    with Publisher.open(layout_of(weights), where) as publisher:
        publisher.publish(weights)
        with Subscriber.connect(where) as subscriber:
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
        mesh = init_device_mesh("cpu", (1,))
        whole = torch.arange(12.0).reshape(4, 3)
        sharded = {"w": distribute_tensor(whole, mesh, [Rows(0)])}
        target = {"w": torch.zeros(4, 3)}
        with (
            Publisher.open(layout_of(sharded), where) as publisher,
            Subscriber.connect(where) as subscriber,
        ):
            with pytest.raises(RltraceError, match=r"w is a DTensor, .* give its full_tensor\(\)"):
                publisher.publish(sharded)
            publisher.publish((name, tensor.full_tensor()) for name, tensor in sharded.items())
            subscriber.pull_into(target)
            with pytest.raises(RltraceError, match=r"w is a DTensor, .* or its to_local\(\)"):
                subscriber.pull_into(sharded)
            assert not subscriber.poisoned
    finally:
        torch.distributed.destroy_process_group()
    assert torch.equal(target["w"], whole)


def test_a_step_is_a_whole_number_of_any_kind(pair: tuple[Publisher, Subscriber]) -> None:
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


def test_tensors_that_are_no_longer_tied_are_not_published(
    pair: tuple[Publisher, Subscriber],
) -> None:
    publisher, _ = pair
    learner = Model(1)
    learner.head.weight = torch.nn.Parameter(learner.head.weight.detach().clone())
    assert publisher.publish(learner) is not None  # equal as yet
    with torch.no_grad():
        learner.head.weight[-1, -1] += 1
    with pytest.raises(RltraceError, match=r"embed.weight and head.weight are no longer tied"):
        publisher.publish(learner)


def test_waiting_for_a_version_ends_in_a_sentence(pair: tuple[Publisher, Subscriber]) -> None:
    publisher, subscriber = pair
    with pytest.raises(RltraceError, match="first version was not published"):
        subscriber.wait(timeout_s=0)
    version = publisher.publish(Model(1))
    assert subscriber.wait(1, timeout_s=0) == subscriber.wait(version, timeout_s=0) == version
    with pytest.raises(RltraceError, match=r"version 2 was not published .* latest is"):
        subscriber.pull_into(Model(1), at_least=2, timeout_s=0)
    with pytest.raises(RltraceError, match="nothing is published at shm://nowhere"):
        Subscriber.connect("shm://nowhere", timeout_s=0)


def test_no_update_allocates_memory_after_the_first(where: str) -> None:
    weights = {"w": np.zeros(16 << 20, dtype=np.uint8)}
    target = {"w": np.zeros(16 << 20, dtype=np.uint8)}
    with Publisher.open(layout_of(weights), where) as publisher:
        subscriber = Subscriber.connect(where)
        for _ in range(3):
            publisher.publish(weights)
            subscriber.pull_into(target, verify=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            publisher.publish(weights)
            subscriber.pull_into(target, verify=True)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        subscriber.close()
    pages = 10 * 2 * len(weights["w"]) // resource.getpagesize()
    assert faults < pages / 100


def test_the_compiled_copy_gives_what_memcpy_gives() -> None:
    library = the_kernel()
    source = np.random.default_rng(0).integers(0, 256, 9000, dtype=np.uint8)
    for start, length in ((0, 8192), (0, 8191), (1, 777), (3, 5), (15, 64), (16, 65), (7, 0)):
        for offset in (0, 1, 16, 63):
            target = np.zeros_like(source)
            address = target.ctypes.data + offset
            library.rltrace_copy(address, source.ctypes.data + start, length)
            assert np.array_equal(target[offset : offset + length], source[start : start + length])
            assert not target[:offset].any()
            assert not target[offset + length :].any()


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


@pytest.mark.parametrize("kernel", [True, False])
def test_weights_larger_than_the_caches_arrive_bit_for_bit(
    where: str, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_STREAMED_FROM_BYTES", 0 if kernel else 1 << 40)
    test_a_model_arrives_bit_for_bit(where, threads=2, verify=True)


def test_what_is_no_version_is_refused_and_so_is_a_pull_after_the_end(where: str) -> None:
    state = {"w": np.zeros(9)}
    with Publisher.open(layout_of(state), where) as publisher:
        version = publisher.publish(state)
        worker = Subscriber.connect(where)
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
    with Publisher.open(layout_of(state), where) as publisher, Subscriber.connect(where) as worker:
        first = publisher.publish(state)
        assert worker.pull_into(state, newer=True) == first
        assert worker.pull_into(state) == first
        with pytest.raises(RltraceError, match="a newer version was not published"):
            worker.pull_into(state, newer=True, timeout_s=0.05)
        later = threading.Timer(0.2, publisher.publish, [state])
        later.start()
        version = worker.pull_into(state, newer=True)
        later.join()
        assert first is not None
        assert version.counter == first.counter + 1


def test_a_worker_says_what_it_waits_for_and_moves_to_the_next_learner(where: str) -> None:
    """`benchmarks.sync_restarts` does the same with killed processes, relays and lost hosts."""
    held, state = {"w": np.zeros(9)}, {"w": np.ones(9)}
    publisher = Publisher.open(layout_of(state), where)
    worker = Subscriber.connect(where)
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
        assert first is not None
        assert second is not None
        assert second > first
        assert (worker.behind_s, worker.error) == (0.0, None)
        assert held["w"][0] == 2
    worker.close()


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
    words = [sys.executable, "-c", PULLER, where]
    with (
        Publisher.open(layout_of(state), where) as publisher,
        Subscriber.connect(where) as worker,
    ):
        publisher.publish(state)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            for number in range(1, 20):
                assert other.stdout.readline() == "pulled\n"
                time.sleep(number % 7 / 1000)
                other.send_signal(signal.SIGSTOP)
                state["w"][:] = number
                assert publisher.publish(state) is not None
                worker.pull_into(held, newer=True, timeout_s=PATIENCE_S)
                assert (held["w"] == number).all()
                other.send_signal(signal.SIGCONT)
            other.kill()
