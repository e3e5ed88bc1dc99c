"""Deaths at a place that does not depend on time: a process kills itself, as the kernel might."""

from __future__ import annotations

import os
import signal


def die(place: str, count: int | None) -> None:
    """SIGKILL, if the environment asks for it at this place when it has come to this count."""
    if os.environ.get("VERL_CPU_DIES") == f"{place}:{count}":
        os.kill(os.getpid(), signal.SIGKILL)
