"""A CPU as a platform of verl: gloo, no memory of a device, and Ray's "GPU" as a mere number.

verl 0.9 has a registry of platforms. Before, functions of `verl.utils.device` say what there is.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import torch


def says(answer: Any) -> Callable[..., Any]:
    """What answers so, whatever it is asked."""
    return lambda *_args, **_more: answer


class _Device(types.ModuleType):
    """torch.cpu, and the calls that verl expects from torch.cuda."""

    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = says(0)
    empty_cache = reset_peak_memory_stats = ipc_collect = set_device = says(None)
    manual_seed = manual_seed_all = says(None)
    mem_get_info = says((0, 0))
    get_rng_state = staticmethod(lambda *_args: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, *_args: torch.set_rng_state(state))
    is_bf16_supported = says(True)
    get_device_name = says("CPU")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


class CpuPlatform:
    device_name = vendor_name = "cpu"
    device_module = _Device("verl_cpu.device")
    is_available = says(True)
    current_device = says(torch.device("cpu"))  # verl moves tensors to it
    device_count = says(1)
    get_device_capability = says((None, None))
    communication_backend_name = says("gloo")
    visible_devices_envvar = says("CUDA_VISIBLE_DEVICES")
    nvtx_range = says(nullcontext())
    ray_resource_name = says("GPU")
    ray_noset_envvars = says([])
    is_ipc_supported = says(False)
    set_device = synchronize = set_allocator_settings = empty_cache = says(None)
    profiler_start = profiler_stop = cudart = says(None)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed


def register() -> None:
    """Makes it the platform that `VERL_PLATFORM=cpu` names, or the only one that there is."""
    if find_spec("verl.plugin"):
        from verl.plugin.platform.platform_base import PlatformBase
        from verl.plugin.platform.platform_manager import PlatformRegistry

        made = type("CpuPlatform", (CpuPlatform, PlatformBase), {})
        PlatformRegistry.register(platform="cpu")(made)
        return
    from verl import protocol
    from verl.utils import device

    for module in (device, protocol):  # the modules that are there by now
        module.get_torch_device = says(CpuPlatform.device_module)
        module.get_device_id = CpuPlatform.current_device
    device.get_resource_name = CpuPlatform.ray_resource_name
    device.get_nccl_backend = CpuPlatform.communication_backend_name
