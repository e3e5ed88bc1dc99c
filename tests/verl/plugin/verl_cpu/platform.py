"""A CPU as a platform of verl: gloo, no memory of a device, and Ray's "GPU" as a mere number."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _Device(types.ModuleType):
    """torch.cpu, and the calls that verl expects from torch.cuda."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def _device() -> _Device:
    device = _Device("verl_cpu.device")
    for name in ("memory_allocated", "memory_reserved"):
        for prefix in ("", "max_"):
            setattr(device, prefix + name, lambda *_args, **_more: 0)
    for name in (
        "empty_cache", "reset_peak_memory_stats", "ipc_collect", "set_device", "manual_seed",
        "manual_seed_all",
    ):  # fmt: skip
        setattr(device, name, lambda *_args, **_more: None)
    device.mem_get_info = lambda *_args: (0, 0)
    device.get_rng_state = lambda *_args: torch.get_rng_state()
    device.set_rng_state = lambda state, *_args: torch.set_rng_state(state)
    device.is_bf16_supported = lambda *_args: True
    device.get_device_name = lambda *_args: "CPU"
    return device


class CpuPlatform(PlatformBase):
    """What verl asks of a device."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")  # verl moves tensors to it

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: Any) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None: ...


def register() -> None:
    """Makes it the platform that `VERL_PLATFORM=cpu` names."""
    PlatformRegistry.register(platform="cpu")(CpuPlatform)
