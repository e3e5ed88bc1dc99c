"""Modules that are changed once they have been executed, and what changes them.

Nothing is imported here: most processes of a job load few of these modules, or none.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from types import ModuleType


def _change(place: str, module: ModuleType) -> None:
    where, _, function = place.partition(":")
    getattr(import_module(f"openrlhf_cpu.{where}"), function)(module)


_CHANGES = {
    "torch": "device:without_cuda",
    "ray": "device:own_cluster",
    "deepspeed.runtime.zero.partition_parameters": "transfer:one_by_one",
    "openrlhf.utils.deepspeed.deepspeed": "device:mesh_of_cpus",
    "openrlhf.utils.distributed_util": "transfer:over_gloo",
    "vllm.model_executor.layers.utils": "transfer:loadable",
    "vllm.v1.engine.async_llm": "watched:engine",
    "vllm.v1.worker.cpu_worker": "watched:slower",
}
"""Module -> the function of this package that takes it."""

CHANGES = {name: partial(_change, place) for name, place in _CHANGES.items()}
