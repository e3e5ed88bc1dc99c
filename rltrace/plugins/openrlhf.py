"""OpenRLHF's weights in two calls an update instead of one a tensor.

OpenRLHF has no setting for it, so `rltrace wrap --sync` replaces two functions as their modules are
imported. The first rank calls each engine as OpenRLHF does for a tensor, but names a version: to
hold it, checked, and once all do to load it. A worker that does not know of this fails: the type
that it is told is none of a model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from rltrace.hooks import weight_moves
from rltrace.hooks.span_api import Phases
from rltrace.trace.errors import WrongUsage
from rltrace.trace.read.framework_figure import satisfies

NAMED = "rltrace.sync "
"""How the name of what is no tensor begins. Then comes what is to be done: "stage" with place,
version and, for workers of other hosts, address and token of a relay; "commit"; or "abort"."""

_LOOK_S = 0.5
_REACH_S = 60.0  # for the first sign of a relay, which is there before it is called
_PATIENCE_S = 600.0  # for a version that is on its way, over whatever network there is
VERSIONS = ">=0.10.2,<0.12"  # whose way of gathering a parameter is the one below


def send_whole(module: Any) -> None:
    """`openrlhf.trainer.ray.ppo_actor`, imported: updates are sent whole. Errors: `RltraceError`
    for a version of OpenRLHF that this does not know."""
    from rltrace.hooks.patch.install import version_of

    version = version_of("openrlhf")
    if not satisfies(version, VERSIONS):
        raise WrongUsage(f"OpenRLHF {version} is none of {VERSIONS}")
    trainer = module.ActorPPOTrainer
    original: Callable[[Any], None] = trainer.broadcast_to_vllm

    @functools.wraps(original)
    def broadcast_to_vllm(self: Any) -> None:
        if self.vllm_engines is None or self.use_cuda_ipc:  # shared devices: no host in between
            original(self)
        else:
            self.__dict__.setdefault("_rltrace_sender", _Sender(module)).send(self)

    trainer.broadcast_to_vllm = broadcast_to_vllm


def take_whole(module: Any) -> None:
    """`openrlhf.trainer.ray.vllm_worker_wrap`, imported: workers of vLLM take versions."""
    worker = module.WorkerWrap
    original: Callable[..., None] = worker.update_weight

    @functools.wraps(original)
    def update_weight(
        self: Any, name: str, dtype: Any, shape: Any, empty_cache: bool = False
    ) -> None:
        if not name.startswith(NAMED):
            original(self, name, dtype, shape, empty_cache)
            return
        what, *told = name.removeprefix(NAMED).split()
        getattr(self.__dict__.setdefault("_rltrace_part", _Part()), what)(self, *told)

    worker.update_weight = update_weight


class _Sender:
    def __init__(self, module: Any) -> None:
        self._module = module
        self._publisher: Any = None
        self._relay: Any = None

    def send(self, trainer: Any) -> None:
        """All ranks gather, the first publishes and has every engine take it."""
        torch, ray = self._module.torch, self._module.ray
        with Phases(weight_moves.begun(trainer)) as phases:
            phases.begin("sync", "set up")
            first = torch.distributed.get_rank() == 0
            reset = []
            if first and getattr(trainer.strategy.args.vllm, "enable_prefix_caching", False):
                reset = [engine.reset_prefix_cache.remote() for engine in trainer.vllm_engines]
            torch.cuda.empty_cache()
            if first:
                if self._publisher is None:
                    self._open()
                self._publish_and_call(trainer, phases)
            else:
                phases.begin("sync", "take part", "gather")
                for _ in _gathered(self._module, trainer):
                    pass
            phases.begin("wait", "the other ranks")
            ray.get(reset)
            torch.cuda.empty_cache()
            self._module.torch_dist_barrier_and_cuda_sync()

    def _open(self) -> None:
        from rltrace.plugins.streaming import StreamPublisher, fresh_place

        ray = self._module.ray
        self._publisher = StreamPublisher(fresh_place("openrlhf"))
        if sum(node["Alive"] for node in ray.nodes()) > 1:  # engines may be on any of them
            from rltrace.sync.transfer.relay_process import Beside

            self._relay = Beside(self._publisher.where, ray.util.get_node_ip_address())

    def _publish_and_call(self, trainer: Any, phases: Phases) -> None:
        from rltrace.sync.recording import columns_of  # loaded by now

        phases.begin("sync", "send")
        manifest = self._publisher.publish(_gathered(self._module, trainer))
        stage = f"stage {self._publisher.where} {manifest.version}"
        if self._relay is not None:
            stage += f" {self._relay.address} {self._relay.token}"
        engines = trainer.vllm_engines
        phases.begin("wait", "the engines")
        try:
            self._wait(self._calls(engines, stage))
        except Exception:
            self._calls(engines, "abort")
            raise
        phases.begin("sync", "engines take them", "load", bytes=manifest.bytes)
        self._wait(self._calls(engines, "commit", manifest.bytes))
        weight_moves.say(trainer, columns_of(manifest) | {"buckets": 1})

    def _calls(self, engines: list[Any], what: str, size_bytes: int = 0) -> list[Any]:
        """Asks all engines. What OpenRLHF's own last call of an update says, a commit says."""
        torch, is_last = self._module.torch, what == "commit"
        told = {"dtype": torch.uint8, "shape": torch.Size([size_bytes]), "empty_cache": is_last}
        return [engine.update_weight.remote(NAMED + what, **told) for engine in engines]

    def _wait(self, calls: list[Any]) -> None:
        """Errors: that of the first call that fails; the others may still load a part."""
        ray, left = self._module.ray, calls
        while left:
            if self._relay is not None:
                self._relay.keep()
            done, left = ray.wait(left, num_returns=len(left), timeout=_LOOK_S)
            ray.get(done)


def _gathered(module: Any, trainer: Any) -> Iterator[tuple[str, Any]]:
    model = trainer.actor.model.module
    sees = getattr(trainer.actor, "is_vlm", False)  # what sees is frozen
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or not sees:
            with _whole(module, trainer, model, parameter):
                yield name, parameter.data


def _whole(module: Any, trainer: Any, model: Any, parameter: Any) -> Any:
    """OpenRLHF's own way to have a parameter whole, which every rank has to take part in."""
    args, deepspeed = trainer.strategy.args.ds, module.deepspeed
    if args.tensor_parallel_size > 1:
        layers = deepspeed.module_inject.layers
        return layers.GatherReplacedLayerParams([parameter], model, enabled=True)
    return deepspeed.zero.GatheredParameters([parameter], enabled=args.zero_stage == 3)


class _Part:
    def __init__(self) -> None:
        self.subscriber: Any = None
        self._held: Any = None

    def stage(
        self, worker: Any, place: str, version: str, address: str = "", token: str = ""
    ) -> None:
        """Holds a checked version: of `place`, or of this host's relay. Errors: `RltraceError`."""
        from rltrace.sync.memory.arena import lies_here
        from rltrace.sync.subscriber import Subscriber
        from rltrace.sync.version import Version

        where, wanted = place if lies_here(place) else address, Version.parse(version)
        if not where:
            said = f"{place} does not lie on this host, and nobody serves it: Ray had one node only"
            raise WrongUsage(said)
        self.abort(worker)
        with Phases() as phases:
            phases.begin("wait", "the policy's weights")
            if self.subscriber is None or self.subscriber.where != where:
                if self.subscriber is not None:
                    self.subscriber.close()
                self.subscriber = Subscriber.connect(where, _REACH_S, token=token or None)
            self.subscriber.wait(wanted, _PATIENCE_S)
            self._held = self.subscriber.lease(wanted)

    def commit(self, worker: Any) -> None:
        if self._held is None:
            raise WrongUsage("no version is held that could be loaded")
        views, manifest = self._held, self._held.manifest
        with Phases() as phases:
            number, size = manifest.number, manifest.bytes
            loading = phases.begin("sync", "load", "load", version=number, bytes=size)
            loading.set(items=len(views))
            tensors = ((name, views.torch(name).to(worker.device)) for name in views)
            worker.model_runner.model.load_weights(weights=tensors)
        self.abort(worker)

    def abort(self, worker: Any) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None
