"""verl's checkpoint engine `rltrace`: registered where verl's registry is, once that is imported.

verl loads this module in each of its processes, by the entry point `verl.plugins` (0.9 on) or as
`VERL_USE_EXTERNAL_MODULES=rltrace.plugins.verl_backend`, when it is half imported itself. The
engine is used where `checkpoint_engine.backend=rltrace` asks for it.
"""

from __future__ import annotations

import sys
from typing import Any

from rltrace.hooks.finder import ImportFinder

REGISTRY = "verl.checkpoint_engine.base"


def register(module: Any) -> None:
    """Registers the engine with verl's registry of checkpoint engines: `REGISTRY`, imported."""
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
