"""The two functions of OpenRLHF that `wrap --sync` replaces, on stand-ins for what is around them:
one call an update, the model bit for bit, and OpenRLHF's own way wherever this is not meant."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rltrace
from rltrace.sync import DamagedError
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.hooks import weight_moves as moved
from rltrace.testing.inside.plugins import StreamPublisher, openrlhf
from rltrace.testing.inside.sync import arena
from rltrace.testing.inside.sync import relay_process as beside
from rltrace.testing.inside.trace import RltraceError
from tests.hooks.conftest import wrapped


class Worker:
    """What vLLM makes of OpenRLHF's extension and its own worker."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.own_calls: list[str] = []
        self.loaded: dict[str, torch.Tensor] = {}
        self.model_runner = SimpleNamespace(model=self)

    def update_weight(self, name: str, dtype: Any, shape: Any, empty_cache: bool = False) -> None:
        """OpenRLHF's own, for a tensor."""
        self.own_calls.append(name)

    def load_weights(self, weights: Any) -> None:
        """vLLM's models'."""
        self.loaded = {name: tensor.clone() for name, tensor in weights}


class Trainer:
    def __init__(self, engines: list[Any], **args: Any) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
        self.actor = SimpleNamespace(model=SimpleNamespace(module=self.model), is_vlm=False)
        self.vllm_engines, self.use_cuda_ipc, self.own_calls = engines, False, 0
        ds = {"zero_stage": 2, "tensor_parallel_size": 1} | args
        groups = {"ds": SimpleNamespace(**ds), "vllm": SimpleNamespace()}
        self.strategy = SimpleNamespace(args=SimpleNamespace(**groups))

    def broadcast_to_vllm(self) -> None:
        """OpenRLHF's own, tensor by tensor."""
        self.own_calls += 1


class Engine:
    """A handle of a rollout actor, which hands the call on to its worker. A worker that is `far`
    sees nothing of the policy's memory."""

    def __init__(self, worker: Worker, far: bool = False) -> None:
        self.calls: list[str] = []
        self.worker = worker
        self.far = far
        self._thread = ThreadPoolExecutor(1)
        self.update_weight = SimpleNamespace(remote=self._call)

    def _call(self, name: str, **more: Any) -> Future[None]:
        self.calls.append(name)
        return self._thread.submit(self._hand_on, name, more)

    def _hand_on(self, name: str, more: dict[str, Any]) -> None:
        unseen.place = name.split()[2] if self.far and "stage" in name else ""
        self.worker.update_weight(name, **more)


unseen = threading.local()
"""The place that a thread cannot see."""


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Both modules, after `wrap --sync` has had them; relays that they started are ended."""
    kinds = type("Worker", (Worker,), {}), type("Trainer", (Trainer,), {})
    seen: list[Any] = []

    def gathered(parameters: list[Any], enabled: bool) -> Any:
        seen.append((parameters[0].shape, enabled))
        return nullcontext()

    fake_torch = SimpleNamespace(
        distributed=SimpleNamespace(get_rank=lambda: module.rank),
        cuda=SimpleNamespace(empty_cache=lambda: None),
        uint8=torch.uint8,
        Size=torch.Size,
    )
    module = SimpleNamespace(
        ActorPPOTrainer=kinds[1],
        torch=fake_torch,
        ray=SimpleNamespace(
            get=lambda calls: [call.result() for call in calls],
            wait=lambda calls, num_returns, timeout: tuple(map(list, wait(calls, timeout))),
            nodes=lambda: [{"Alive": True}, {"Alive": False}, *module.others],
            util=SimpleNamespace(get_node_ip_address=lambda: module.address),
        ),
        others=[],
        address="127.0.0.1",
        deepspeed=SimpleNamespace(zero=SimpleNamespace(GatheredParameters=gathered)),
        torch_dist_barrier_and_cuda_sync=lambda: None,
        rank=0,
        gathered=seen,
        Worker=kinds[0],
    )
    openrlhf.send_whole(module)
    openrlhf.take_whole(SimpleNamespace(WorkerWrap=kinds[0]))
    here = arena.lies_here
    monkeypatch.setattr(
        arena, "lies_here", lambda place: place != getattr(unseen, "place", "") and here(place)
    )
    yield module
    for relay in relays_of_this_process():
        os.kill(relay, signal.SIGTERM)


def relays_of_this_process() -> list[int]:
    found = []
    for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        if beside.__name__.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
            found.append(int(child))
    return found


def has_all(worker: Worker, model: torch.nn.Module) -> bool:
    named, loaded = dict(model.named_parameters()), worker.loaded
    same = list(loaded) == list(named)
    return same and all(torch.equal(loaded[name], named[name]) for name in named)


def changed(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.model[0].weight += 1.0


def test_every_engine_has_the_model_after_two_calls_each(replaced: SimpleNamespace) -> None:
    engines = [Engine(replaced.Worker()) for _ in range(2)]
    trainer = replaced.ActorPPOTrainer(engines)
    for update in (1, 2):
        changed(trainer)
        trainer.broadcast_to_vllm()
        assert [len(engine.calls) for engine in engines] == [2 * update] * 2
        assert [has_all(engine.worker, trainer.model) for engine in engines] == [True, True]
    assert trainer.own_calls == 0
    size = sum(4 * parameter.numel() for parameter in trainer.model.parameters())
    said = moved.said(trainer)
    assert (said["bytes"], said["wire_bytes"], said["buckets"]) == (size, size, 1)


@pytest.mark.parametrize(
    ("rank", "phases"),
    [
        (0, ["set up", "send", "the engines", "engines take them", "the other ranks"]),
        (1, ["set up", "take part", "the other ranks"]),
    ],
)
def test_the_phases_of_an_update_meet_from_where_openrlhfs_own_began(
    replaced: SimpleNamespace, recorder: Recorder, run_path: Path, rank: int, phases: list[str]
) -> None:
    replaced.rank = rank
    trainer = replaced.ActorPPOTrainer([Engine(replaced.Worker())])
    for _ in range(2):
        with rltrace.span("sync", "update") as update:
            moved.begins(trainer, update.start_ns)
            trainer.broadcast_to_vllm()
    names = ", ".join(f"'{name}'" for name in ["update", *phases])
    query = f"SELECT name, start_ns, end_ns FROM spans WHERE name IN ({names})"
    order = " ORDER BY start_ns, end_ns DESC"
    found = rltrace.open_run(run_path).sql(query + order).fetchall()
    each = len(phases) + 1
    for update in (found[:each], found[each:]):
        assert [name for name, *_ in update] == ["update", *phases]
        (_, began_ns, ended_ns), *parts = update
        assert parts[0][1] == began_ns
        assert all(one[2] == then[1] for one, then in pairwise(parts))
        assert parts[-1][2] <= ended_ns


def test_engines_of_other_hosts_have_the_model_from_a_relay_that_may_be_killed(
    replaced: SimpleNamespace,
) -> None:
    replaced.others = [{"Alive": True}]
    engines = [Engine(replaced.Worker(), far) for far in (False, True, True)]
    trainer = replaced.ActorPPOTrainer(engines)
    relays = []
    for update in range(3):
        changed(trainer)
        trainer.broadcast_to_vllm()
        assert [has_all(engine.worker, trainer.model) for engine in engines] == [True] * 3
        relays += [process for process in relays_of_this_process() if process not in relays]
        if update == 1:
            os.kill(relays[-1], signal.SIGKILL)
    assert len(relays) == 2
    near, *far = (engine.worker.__dict__["_rltrace_part"].subscriber for engine in engines)
    assert near.where.startswith("shm://")
    assert [one.where for one in far] == [engines[1].calls[0].split()[4]] * 2
    for subscriber in (near, *far):
        subscriber.close()


def test_a_policy_that_cannot_be_served_says_why(replaced: SimpleNamespace) -> None:
    replaced.others, replaced.address = [{"Alive": True}], "192.0.2.1"  # none of this host's
    trainer = replaced.ActorPPOTrainer([Engine(replaced.Worker())])
    with pytest.raises(RltraceError, match=r"no relay serves at 192\.0\.2\.1: .*assign"):
        trainer.broadcast_to_vllm()


def test_an_engine_that_fails_is_heard_of_while_others_are_at_it(
    replaced: SimpleNamespace,
) -> None:
    replaced.others = [{"Alive": True}]
    over = threading.Event()

    def hangs(name: str, **more: Any) -> None:
        assert over.wait(20), "nobody heard of the other one"

    def fails(name: str, **more: Any) -> None:
        raise ValueError("no memory is left")

    workers: list[Any] = [SimpleNamespace(update_weight=each) for each in (hangs, fails)]
    trainer = replaced.ActorPPOTrainer([Engine(worker) for worker in workers])
    with pytest.raises(ValueError, match="no memory is left"):
        trainer.broadcast_to_vllm()
    over.set()


def test_no_engine_loads_what_another_one_cannot_have(replaced: SimpleNamespace) -> None:
    engines = [Engine(replaced.Worker()), Engine(replaced.Worker(), far=True)]  # and no relay
    trainer = replaced.ActorPPOTrainer(engines)
    with pytest.raises(RltraceError, match="does not lie on this host"):
        trainer.broadcast_to_vllm()
    assert [engine.worker.loaded for engine in engines] == [{}, {}]
    engines[1].far = False
    trainer.broadcast_to_vllm()
    assert [has_all(engine.worker, trainer.model) for engine in engines] == [True, True]


def test_nothing_of_a_damaged_version_is_loaded(
    replaced: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(replaced.Worker())
    trainer = replaced.ActorPPOTrainer([engine])
    trainer.broadcast_to_vllm()
    before = {name: tensor.clone() for name, tensor in engine.worker.loaded.items()}
    publish = StreamPublisher.publish

    def damaging(self: StreamPublisher, *given: Any) -> Any:
        manifest = publish(self, *given)
        assert self._publisher is not None
        for slot in range(2):
            self._publisher.arena.control.digests(slot)[:] += 1
        return manifest

    monkeypatch.setattr(StreamPublisher, "publish", damaging)
    changed(trainer)
    with pytest.raises(DamagedError):
        trainer.broadcast_to_vllm()
    assert all(torch.equal(engine.worker.loaded[name], before[name]) for name in before)


def test_other_ranks_take_part_in_the_gathering_only(replaced: SimpleNamespace) -> None:
    replaced.rank = 1
    engine = Engine(replaced.Worker())
    trainer = replaced.ActorPPOTrainer([engine], zero_stage=3)
    trainer.broadcast_to_vllm()
    assert engine.calls == []
    assert replaced.gathered == [(p.shape, True) for p in trainer.model.parameters()]


def test_shared_devices_and_single_tensors_keep_openrlhfs_way(replaced: SimpleNamespace) -> None:
    worker = replaced.Worker()
    trainer = replaced.ActorPPOTrainer([Engine(worker)])
    trainer.use_cuda_ipc = True
    trainer.broadcast_to_vllm()
    assert (trainer.own_calls, moved.said(trainer)) == (1, {})
    worker.update_weight("lm_head.weight", torch.bfloat16, torch.Size([2]), empty_cache=True)
    assert worker.own_calls == ["lm_head.weight"]


SCRIPT = """
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
functions = [ActorPPOTrainer.broadcast_to_vllm]
while hasattr(functions[-1], "__wrapped__"):  # the adapter's is the outermost
    functions.append(functions[-1].__wrapped__)
files = [function.__code__.co_filename for function in functions]
print("replaced:", any(file.endswith("plugins/openrlhf.py") for file in files))
"""


@pytest.mark.parametrize(
    ("version", "asked", "said"),
    [("0.11.2", ["--sync"], True), ("0.11.2", [], False), ("0.9.1", ["--sync"], False)],
)
def test_it_is_replaced_where_it_is_asked_for_and_known(
    tmp_path: Path, version: str, asked: list[str], said: bool
) -> None:
    package = tmp_path / "fake" / "openrlhf" / "trainer" / "ray"
    package.mkdir(parents=True)
    for folder in (package.parents[1], package.parent, package):
        (folder / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (package / "ppo_actor.py").write_text(
        "class ActorPPOTrainer:\n    def broadcast_to_vllm(self): ...\n"
    )
    words = ["--out", "run", *asked, "--", sys.executable, "-c", SCRIPT]
    done = wrapped(tmp_path, *words, PYTHONPATH=str(package.parents[2]))
    assert f"replaced: {said}" in done.stdout
    assert ("OpenRLHF 0.9.1 is none of" in done.stderr) == (version == "0.9.1")
