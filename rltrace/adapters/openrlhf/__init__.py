"""OpenRLHF: the synchronous and the asynchronous trainer, on Ray, DeepSpeed and vLLM.

Versions count the weight updates that have been completed; an engine starts with version 0.
"""

from __future__ import annotations

from rltrace.adapters.openrlhf.hooks import HOOKS, ROLES
from rltrace.hooks.hook import Adapter


class OpenRLHF(Adapter):
    framework = "openrlhf"
    versions = ">=0.9.1,<0.12"
    hooks = HOOKS
    roles = ROLES
