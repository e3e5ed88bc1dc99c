"""torch, where OpenRLHF says "cuda" and means the one device of this process, and Ray, on a machine
that has no GPU and may run other clusters."""

from __future__ import annotations

import os
from typing import Any


class _Cpu(str):
    """Torch takes it for "cpu"; in an f-string it is a number, as OpenRLHF's `cuda:{device}`."""

    def __format__(self, spec: str) -> str:
        return "0"


def without_cuda(torch: Any) -> None:
    """The calls that OpenRLHF makes whether or not there is a GPU."""
    device, empty = _Cpu("cpu"), torch.empty

    def on_cpu(*args: Any, **more: Any) -> Any:
        if more.get("device") == "cuda":
            more["device"] = "cpu"
        return empty(*args, **more)

    torch.empty = on_cpu
    torch.cuda.current_device = lambda: device
    for name in ("set_device", "synchronize", "current_stream"):
        setattr(torch.cuda, name, lambda *_args, **_more: None)


def mesh_of_cpus(module: Any) -> None:
    """DeepSpeed's ranks, on no device."""
    init = module.init_device_mesh
    module.init_device_mesh = lambda _device, *args, **more: init("cpu", *args, **more)


def own_cluster(ray: Any) -> None:
    """A cluster for this job alone."""
    init = ray.init

    def init_own(*args: Any, **more: Any) -> Any:
        if not args and "address" not in more:
            gpus = int(os.environ.get("GPUS", "4"))
            more |= {
                "address": "local",
                "num_gpus": gpus,
                "num_cpus": 3 * gpus,
                "include_dashboard": False,
                "object_store_memory": 512 << 20,
                "_temp_dir": os.environ.get("RAY_DIR"),
            }
        return init(*args, **more)

    ray.init = init_own
