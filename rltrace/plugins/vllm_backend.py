"""vLLM's weight transfer backend `rltrace`: registered in each process that loads vLLM's plug-ins.

vLLM does so by the entry point `vllm.general_plugins`. The engines are loaded where
`WeightTransferConfig(backend="rltrace")`, or the trainer's init info, asks for them.
"""

from __future__ import annotations

NAME = "rltrace"


def register() -> None:
    """Registers both engines, once; nothing where vLLM has no such registry (before 0.29)."""
    try:
        from vllm.distributed.weight_transfer.factory import (
            WeightTransferEngineFactory,
            WeightTransferTrainerFactory,
        )
    except ImportError:
        return
    for factory, module, engine in (
        (WeightTransferEngineFactory, "vllm_worker", "RltraceWeightTransferEngine"),
        (WeightTransferTrainerFactory, "vllm_trainer", "RltraceTrainerWeightTransferEngine"),
    ):
        if NAME not in factory._registry:
            factory.register_engine(NAME, f"{__package__}.{module}", engine)
