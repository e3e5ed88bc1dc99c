"""TRL: GRPO, RLOO, online DPO, and the asynchronous trainers.

Versions are optimizer updates where the trainer asks for its samples itself, and TRL's
`model_version`, which counts weight updates, in the asynchronous trainers.
"""

from __future__ import annotations

from rltrace.adapters.trl.hooks import HOOKS
from rltrace.hooks.hook import Adapter


class TRL(Adapter):
    framework = "trl"
    versions = ">=0.28,<1.17"
    hooks = HOOKS
