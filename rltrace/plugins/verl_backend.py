"""verl's checkpoint engine `rltrace`: registered once verl's registry is imported.

verl loads this in each process, by the entry point `verl.plugins` (0.9 on) or as
`VERL_USE_EXTERNAL_MODULES=rltrace.plugins.verl_backend`, when verl is half imported itself.
"""

import sys
from typing import Any

from rltrace.hooks.import_finder import ImportFinder

REGISTRY = "verl.checkpoint_engine.base"


def register(module: Any) -> None:
    del module
    import rltrace.plugins.verl_engine  # noqa: F401  # registers itself


def _failed(name: str, error: BaseException) -> None:
    """verl then says that there is no such backend, and which there are, if it is asked for."""
    recorder = getattr(sys.modules[REGISTRY], "CheckpointEngineRegistry", None)
    record = getattr(recorder, "record_import_error", None)
    if record is not None:
        record(name, error)


_finder = ImportFinder(_failed)
sys.meta_path.insert(0, _finder)
_finder.after(REGISTRY, register)
