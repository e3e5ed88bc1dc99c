"""Other clocks than this machine's, which may have started a minute ago."""

from __future__ import annotations

import subprocess
import time

from rltrace.hooks.recorder import Recorder

A_DAY_S = 86_400
UP_FOR_DAYS = "up-for-days-0"
"""A node that is not this one. No time on its clock is before its start, as on any."""


def up_for_days(*recorders: Recorder) -> int:
    """Has them record on the node `UP_FOR_DAYS`, with times of their own: this machine may not have
    been up for as long as a test looks back. Returns now, by that node's monotonic clock."""
    now_ns = 10 * A_DAY_S * 10**9
    clock = {"monotonic_ns": now_ns, "real_ns": time.time_ns(), "bracket_ns": 1}
    for recorder in recorders:
        recorder.describe(node=UP_FOR_DAYS, clock=clock)
    return now_ns


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
