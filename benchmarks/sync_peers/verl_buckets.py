"""verl's bucketed sender, which brings weights to its vLLM workers through shared memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.sync_bench.models import Weights
from benchmarks.sync_bench.ways import BenchSetting, Receive, Sender, Way

_FILE = "workers/rollout/vllm_rollout/bucketed_weight_transfer.py"
_BUCKET_MB = 512  # its own default; each tensor has to fit in one


@dataclass(frozen=True)
class VerlBuckets(Way):
    """Bucket after bucket through one segment, of which the receiver says when it is free."""

    name = "verl, buckets"

    def missing(self, receivers: int) -> str:
        if find_spec("verl") is None:
            return "verl is not installed"
        try:
            _verl()
        except Exception as error:  # of any kind: it is another project's
            return f"verl's sender cannot be loaded here: {error!r}"
        return "" if receivers == 1 else "verl pairs a sender with one receiver"

    def between_bytes(self, size_bytes: int, receivers: int) -> int:
        return size_bytes * receivers

    def copies(self, receivers: int) -> int:
        """A bucket, at most."""
        return 1

    def sender(self, setting: BenchSetting) -> Sender:
        def send(number: int, weights: Weights) -> None:
            sending = _verl().BucketedWeightSender(
                _socket(setting), bucket_size_mb=_BUCKET_MB, use_shm=True
            )
            asyncio.run(sending.async_send_weights(iter(weights.items())))

        return Sender(send)

    def receiver(self, setting: BenchSetting, number: int, weights: Weights) -> Receive:
        import torch

        module = _verl()

        def load(bucket: list[tuple[str, Any]], is_last: bool) -> None:
            for name, tensor in bucket:
                weights[name].copy_(tensor)

        def receive(number: Any) -> None:
            device = torch.device("cpu")
            module.BucketedWeightReceiver(_socket(setting), device, use_shm=True).receive_weights(
                load
            )

        return receive


@cache
def _verl() -> Any:
    """The module, from its file: the package around it wants vLLM. Without a GPU there is nothing
    to wait for, and no cache to empty."""
    import torch

    package = find_spec("verl")
    assert package is not None
    path = Path((package.submodule_search_locations or [""])[0]) / _FILE
    spec = spec_from_file_location("verl_buckets", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no {path}")
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    if not torch.cuda.is_available():
        nothing = SimpleNamespace(
            synchronize=lambda: None, ipc_collect=lambda: None, empty_cache=lambda: None
        )
        module.get_torch_device = lambda: nothing
    return module


def _socket(setting: BenchSetting) -> str:
    return f"ipc://{setting.folder}/verl"
