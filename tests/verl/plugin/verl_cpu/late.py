"""What is registered with modules of verl once they have been executed.

Functions are replaced where no registry of verl reaches them: the default backend of process groups
("cpu:gloo,cpu:gloo", which torch rejects), the loader of value models, which asks for flash
attention, the choice of a group's port and, before 0.9, the name of a device in Ray and what takes
padding away.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any


def _process_groups(module: ModuleType) -> None:
    original = module.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize(timeout_second: Any = None, backend: Any = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    module.initialize_global_process_group_ray = initialize


def _engines(module: ModuleType) -> None:
    from verl.workers.engine.base import EngineRegistry

    class NoPinnedOffload:
        """verl offloads reference models into pinned memory, which needs a device."""

        engine_config: Any

        def _build_fsdp_module(self, model: Any) -> Any:
            config, forward_only = self.engine_config, self.engine_config.forward_only
            object.__setattr__(config, "forward_only", False)
            try:
                return super()._build_fsdp_module(model)  # type: ignore[misc]
            finally:
                object.__setattr__(config, "forward_only", forward_only)

    for kind, base in (
        ("language_model", module.FSDPEngineWithLMHead),
        ("value_model", module.FSDPEngineWithValueHead),
    ):
        engine = type(f"Cpu{base.__name__}", (NoPinnedOffload, base), {})
        EngineRegistry.register(model_type=kind, backend=["fsdp2"], device="cpu")(engine)

    from verl.utils import model as models

    models.load_valuehead_model = _value_model


def _value_model(
    local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool
) -> Any:
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, attn_implementation="sdpa"
    )


def _workers(module: ModuleType) -> None:
    """verl listens at a port seconds after it chose it: Linux gives those from 32768 on to any
    connection. Before 0.9 it asks Ray for a resource "cpu"."""
    if not hasattr(module, "get_platform"):
        pool = module.RayResourcePool
        place = pool.get_placement_groups

        def place_on_gpus(self: Any, *given: Any, device_name: str = "", **named: Any) -> Any:
            return place(self, *given, device_name="cuda", **named)

        pool.get_placement_groups = place_on_gpus
    choose = module.RayWorkerGroup._get_master_addr_port

    def choose_below(self: Any, pg: Any, bundle_index: int = 0, **_: Any) -> None:
        choose(self, pg, bundle_index, [random.randrange(20_000, 32_000), 32_768])

    module.RayWorkerGroup._get_master_addr_port = choose_below


def _adapters(module: ModuleType) -> None:
    module._ROLLOUT_REGISTRY[("cpu", "async")] = "verl_cpu.rollout.CpuRollout"


def _replicas(module: ModuleType) -> None:
    def load() -> type:
        from verl_cpu.rollout import CpuReplica

        return CpuReplica

    module.RolloutReplicaRegistry.register("cpu", load)


def _tool_parsers(module: ModuleType) -> None:
    class EvenToolParser(module.ToolParser):  # type: ignore[name-defined, misc]
        """An answer of an even number of tokens asks for the tool: models of chance call none."""

        async def extract_tool_calls(
            self, responses_ids: list[int], tools: Any = None
        ) -> tuple[str, list[Any]]:
            call = module.FunctionCall(name="add", arguments='{"a": 1, "b": 2}')
            return self.tokenizer.decode(responses_ids), [call] * (len(responses_ids) % 2 == 0)

    module.ToolParser.register("even")(EvenToolParser)


def _padding(module: ModuleType) -> None:
    """Before 0.9 flash attention's alone would do."""
    import transformers.modeling_flash_attention_utils as known

    functions = known._index_first_axis, known._pad_input, None, known._unpad_input
    module._get_attention_functions = lambda: functions


REGISTER: dict[str, Callable[[ModuleType], None]] = {
    "verl.single_controller.ray.base": _workers,
    "verl.experimental.agent_loop.tool_parser": _tool_parsers,
    "verl.utils.attention_utils": _padding,
    "verl.utils.distributed": _process_groups,
    "verl.workers.engine.fsdp.transformer_impl": _engines,
    "verl.workers.rollout.base": _adapters,
    "verl.workers.rollout.replica": _replicas,
}
