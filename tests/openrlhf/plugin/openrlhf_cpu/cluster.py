"""`ray.init` as OpenRLHF calls it, on a machine that has no GPU and may run other clusters."""

from __future__ import annotations

import os
from typing import Any


def own_cluster(ray: Any) -> None:
    """A cluster for this job alone."""
    init = ray.init

    def init_own(*args: Any, **more: Any) -> Any:
        if not args and "address" not in more:
            gpus = int(os.environ.get("GPUS", "4"))
            more |= {
                "address": "local",
                "num_gpus": gpus,
                "num_cpus": 3 * gpus,
                "include_dashboard": False,
                "object_store_memory": 512 << 20,
                "_temp_dir": os.environ.get("RAY_DIR"),
            }
        return init(*args, **more)

    ray.init = init_own
