"""rltrace: profiling and tracing for LLM reinforcement-learning post-training.

    rltrace wrap -- python train.py     # every process of the job is traced, no code changed
    rltrace report                      # where the step went, how stale the data was, what binds

Importing this package imports the standard library only: it happens in every traced process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rltrace.hooks.api import counter, reward, span, step, trajectory, use, weight_update

if TYPE_CHECKING:
    from rltrace.run.session import start, stop
    from rltrace.trace.run import Run, open_run

__version__ = "0.1.0"

__all__ = [
    "Run",
    "counter",
    "open_run",
    "reward",
    "span",
    "start",
    "step",
    "stop",
    "trajectory",
    "use",
    "weight_update",
]

_LAZY = {
    "Run": "rltrace.trace.run",
    "open_run": "rltrace.trace.run",
    "start": "rltrace.run.session",
    "stop": "rltrace.run.session",
}


def __getattr__(name: str) -> Any:
    """Loads what a traced process does not need (the reading half) when it is asked for."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'rltrace' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(module), name)
