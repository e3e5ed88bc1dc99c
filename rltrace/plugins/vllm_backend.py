"""vLLM's weight transfer backend `rltrace`, by the entry point `vllm.general_plugins`."""

import logging

from rltrace.trace.job_exceptions import from_outside

NAME = "rltrace"
_log = logging.getLogger("rltrace.sync")


def register() -> None:
    """Registers both engines, once. Raises nothing: most processes of vLLM have no use for them."""
    try:
        from vllm.distributed.weight_transfer.factory import (
            WeightTransferEngineFactory,
            WeightTransferTrainerFactory,
        )

        for factory, module, engine in (
            (WeightTransferEngineFactory, "vllm_worker", "RltraceWeightTransferEngine"),
            (WeightTransferTrainerFactory, "vllm_trainer", "RltraceTrainerWeightTransferEngine"),
        ):
            if NAME not in factory._registry:
                factory.register_engine(NAME, f"{__package__}.{module}", engine)
    except ImportError:
        return
    except Exception as error:  # another project's, which may change
        if from_outside(error):
            raise
        _log.warning("vLLM's weight transfer backend %r cannot be registered: %r", NAME, error)
