"""A Ray of the job's own, which no other job on the machine has a part in."""

from __future__ import annotations

from typing import Any

import ray

_init = ray.init


def start(**options: Any) -> Any:
    """`ray.init` on this machine, whatever Ray there is already."""
    own = {"address": "local", "num_cpus": 4, "include_dashboard": False, "log_to_driver": False}
    return _init(**{**options, **own, "object_store_memory": 10**8})
