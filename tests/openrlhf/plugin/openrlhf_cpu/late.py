"""Modules that are changed once they have been executed, and what changes them.

Nothing is imported here: most processes of a job load few of these modules, or none.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

CHANGES = {
    "torch": ("device:without_cuda",),
    "ray": ("cluster:own_cluster",),
    "deepspeed.runtime.zero.partition_parameters": ("gathered:one_by_one",),
    "openrlhf.utils.deepspeed.deepspeed": ("device:mesh_of_cpus",),
    "openrlhf.utils.distributed_util": ("transfer:over_gloo",),
    "vllm.model_executor.layers.utils": ("transfer:loadable",),
    "vllm.v1.engine.async_llm": ("watched:engine", "failing:engine"),
    "vllm.v1.worker.cpu_worker": ("watched:slower",),
}
"""Module -> functions of this package that take it."""


def change(name: str, module: ModuleType) -> None:
    """Makes the changes to a module that has just been executed."""
    for place in CHANGES[name]:
        where, _, function = place.partition(":")
        getattr(import_module(f"openrlhf_cpu.{where}"), function)(module)
