"""torch, where OpenRLHF says "cuda" and means the one device of this process."""

from __future__ import annotations

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
