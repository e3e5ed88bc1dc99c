"""A clock that is ahead of this machine's."""

from __future__ import annotations

import subprocess

from rltrace.testing.clocks import A_DAY_S


def ahead(seconds: int = A_DAY_S) -> list[str]:
    """What, before a command, has it run with a monotonic clock that is so far ahead of this
    process's; empty where that is not permitted."""
    try:
        with open("/proc/self/timens_offsets", encoding="ascii") as file:
            own_s = {clock: int(offset_s) for clock, offset_s, _ in map(str.split, file)}
        # The kernel counts from the machine's clock, and ours may have an offset, too.
        command = ["unshare", "--time", "--monotonic", str(own_s["monotonic"] + seconds), "--fork"]
        permitted = subprocess.run([*command, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return []
    return command if permitted.returncode == 0 else []
