"""Waits at a job's end for its shipping, and says what is left."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rltrace.run.run_end import agent_is_gone
from rltrace.run.shipping.shipping_state import ShippingProgress, read_progress
from rltrace.trace.clock import node_id

WAIT_S = 60.0
_LOOK_EVERY_S = 0.2
_SAY_FIRST_S, _SAY_EVERY_S = 3.0, 10.0


def wait(run_dir: Path, say: Callable[[str], None]) -> ShippingProgress:
    """Waits until the agents have shipped all that the nodes recorded, for `WAIT_S` at most, or
    until Ctrl-C; how far they are then."""
    began = time.monotonic()
    until, say_at = began + WAIT_S, began + _SAY_FIRST_S
    told = ShippingProgress()
    with suppress(KeyboardInterrupt):
        while (now := time.monotonic()) < until:
            told = read_progress(run_dir, node_id())
            if told.over or not run_dir.is_dir() or agent_is_gone(run_dir):
                break
            if now >= say_at:
                say_at = now + _SAY_EVERY_S
                say(f"{_doing(told)}; waiting for {until - now:.0f} s more (Ctrl-C: not at all)")
            time.sleep(_LOOK_EVERY_S)
    return told


def what_is_left(run_dir: Path, told: ShippingProgress) -> list[str]:
    """What was not shipped and how it is later, a sentence each."""
    said = []
    if not told.done:
        why = f" ({told.error})" if told.error else ""
        size = f"{megabytes(told.left_bytes)} of " if told.left_bytes else ""
        shown = shlex.quote(os.path.relpath(run_dir))
        said.append(
            f"{size}this node is not shipped{why}: its agent, if it lives, goes on for some "
            f"minutes; after that, `rltrace ship {shown}`"
        )
    if told.waits_for:
        hosts = ", ".join(told.waits_for)
        said.append(
            f"not all of {hosts} has come: what is missing is on that node's own disk, in "
            f"{run_dir} or its folder for temporary files, and `rltrace ship` there brings it"
        )
    return said


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


def _doing(told: ShippingProgress) -> str:
    if told.error:
        return f"shipping: nothing comes through ({told.error})"
    if told.done and told.waits_for:
        return f"shipping: this node is there, {', '.join(told.waits_for)} is not yet"
    left = f", {megabytes(told.left_bytes)} left" if told.left_bytes else ""
    return f"shipping: {megabytes(told.shipped_bytes)} there{left}"
