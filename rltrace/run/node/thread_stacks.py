"""Where the threads of processes on this node wait, seen from outside without ptrace.

A thread that waits in the kernel is asked for its stack by a signal (`rltrace.hooks.boot`).
What was measured decides which ones are asked. The dump of a thread that runs may read a frame as
it changes, and end the process: one in some hundred in Python 3.10 and 3.13 (of all threads at
once in 3.11, too). And a poll or a sleep in C comes back early, which a program may take for an
error: unless somebody asks for it, only waits that the kernel takes up again are disturbed.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rltrace.analysis.stuck.observed import ProcessSeen, StackLine, ThreadSeen
from rltrace.hooks.boot import STACK_SIGNAL
from rltrace.trace.clock import node_id
from rltrace.trace.liveness import began_at
from rltrace.trace.run_dir import STACKS
from rltrace.trace.safe_open import alone
from rltrace.trace.untrusted_files import read_own

_GOES_ON = (
    *("futex", "pipe_read", "do_wait", "wait_woken", "unix_stream", "sk_wait", "fifo"),
    "wait_for_partner",
)
"""Begins, or parts, of the kernel's names for waits that a signal does not end."""
_ASLEEP = "SD"
_MOST_SWITCHES = 5  # a second: a thread that wakes more often may be at work as it is asked
_DELIVERED_S = 0.2
_WRITTEN_S = 0.005
_PER_PROCESS_S = 3.0
_LOOKS, _LOOK_EVERY_S = 15, 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_HEAD = "(most recent call first)"
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def look_at(run_dir: Path, processes: Mapping[str, Mapping[str, Any]], apart_s: float,
         dumps: int = 2, also_polls: bool = False) -> dict[str, ProcessSeen]:  # fmt: skip
    """Where each of the `processes` (what its file says, by `who`) is: two looks that are `apart_s`
    seconds apart, and a stack of each thread that may be asked in the first `dumps` of them."""
    first = {who: _seen(int(facts.get("pid", -1)), facts) for who, facts in processes.items()}
    time.sleep(min(1.0, apart_s))  # how often threads wake
    calm = {who: _seen(one.pid, processes[who]) for who, one in first.items()}
    stacks = [_asked(run_dir, processes, first, calm, also_polls)] if dumps else []
    time.sleep(max(0.0, apart_s - 1.0))
    last = {who: _seen(one.pid, processes[who]) for who, one in first.items()}
    for _ in range(_LOOKS):  # one that waits for a core is not at work: it sleeps again soon
        runs = [who for who, one in last.items() if one.threads and not one.threads[0].wait]
        time.sleep(_LOOK_EVERY_S if runs else 0)
        last |= {who: _seen(last[who].pid, processes[who]) for who in runs}
    if dumps > 1:
        stacks.append(_asked(run_dir, processes, first, calm, also_polls))
    return {who: _together(who, first[who], last[who], stacks, apart_s) for who in processes}


def computes(pids: Iterable[int]) -> bool:
    """Whether a thread of these processes has work, though it may get no core for it."""
    found: Counter[str] = Counter()
    for _ in range(_LOOKS):
        for pid in pids:
            with suppress(OSError, ValueError, IndexError):
                for tid in os.listdir(f"/proc/{pid}/task"):
                    task = f"/proc/{pid}/task/{tid}"
                    found[task] += _stat(f"{task}/stat")[1] == "R"
        time.sleep(_LOOK_EVERY_S)
    return max(found.values(), default=0) > _LOOKS / 2


def used(pids: Iterable[int]) -> dict[int, tuple[float, float]]:
    """CPU seconds, and bytes read, mapped files' too, and written, of each process that lives."""
    found = {}
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            ticks = _stat(f"/proc/{pid}/stat")[2]
            said = Path(f"/proc/{pid}/io").read_text("utf-8")
            moved = sum(
                map(int, re.findall(r"^(?:[rw]char|read_bytes): (\d+)", said, re.MULTILINE))
            )
            found[pid] = (ticks / _TICKS_PER_S, float(moved))
    return found


def _seen(pid: int, facts: Mapping[str, Any]) -> ProcessSeen:
    began, started = began_at(pid), facts.get("start_ns")
    if began is None or not isinstance(started, int) or began > started + 10**9:
        return ProcessSeen(pid, False, "", ())
    threads = []
    with suppress(OSError):
        for tid in sorted(map(int, os.listdir(f"/proc/{pid}/task")), key=lambda one: one != pid):
            with suppress(OSError, ValueError, IndexError):
                threads.append(_thread(pid, tid))
    return ProcessSeen(pid, True, threads[0].state if threads else "", tuple(threads))


def _thread(pid: int, tid: int) -> ThreadSeen:
    task = f"/proc/{pid}/task/{tid}"
    name, state, ticks = _stat(f"{task}/stat")
    status = Path(f"{task}/status").read_text("utf-8", "replace")
    switches = sum(map(int, re.findall(r"voluntary_ctxt_switches:\s+(\d+)", status)))
    wait = Path(f"{task}/wchan").read_text("utf-8", "replace")
    return ThreadSeen(tid, name, state, "" if wait == "0" else wait, ticks / _TICKS_PER_S, switches)


def _stat(path: str) -> tuple[str, str, int]:
    said = Path(path).read_text("utf-8", "replace")
    name, _, rest = said.partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, fields[0], int(fields[11]) + int(fields[12])


Stacks = dict[tuple[str, int], tuple[StackLine, ...]]


def _asked(
    run_dir: Path, processes: Mapping[str, Mapping[str, Any]], first: dict[str, ProcessSeen],
    calm: dict[str, ProcessSeen], also_polls: bool,
) -> Stacks:  # fmt: skip
    found: Stacks = {}
    for who, process in calm.items():
        before = {thread.tid: thread.switches for thread in first[who].threads}
        until = time.monotonic() + _PER_PROCESS_S
        for thread in process.threads:
            wakes = thread.switches - before.get(thread.tid, 0)
            waits = also_polls or any(part in thread.wait for part in _GOES_ON)
            if thread.tid in before and wakes <= _MOST_SWITCHES and waits and thread.wait:
                if time.monotonic() > until:
                    break
                if stack := stack_of(run_dir, process.pid, thread.tid, processes[who]):
                    found[who, thread.tid] = stack
                elif thread.tid == process.pid:
                    break  # a handler of the job's own has taken the place of ours
    return found


def stack_of(run_dir: Path, pid: int, tid: int, facts: Mapping[str, Any]) -> tuple[StackLine, ...]:
    """The stack of a thread of the process that says `facts` of itself; none where it cannot be
    asked, or runs no Python. One is asked at a time: all processes of a node write to one file."""
    path = run_dir / STACKS / f"{node_id()}.txt"
    try:
        with alone(path.parent):
            text = _written(path, pid, tid, facts.get("stacks"))
    except (OSError, ValueError, AttributeError):  # it ended, or this system has no `tgkill`
        return ()
    lines = _FRAME.findall(text) if text.count(_HEAD) == 1 else []  # not a late one of another
    return tuple(StackLine(file, int(line), function) for file, line, function in lines)


def _written(path: Path, pid: int, tid: int, descriptor: object) -> str:
    """What a thread that is asked writes. Errors: OSError, ValueError, AttributeError."""
    size = os.stat(path).st_size
    if not _may_ask(path, pid, tid, descriptor):
        return ""
    if ctypes.CDLL(None).tgkill(pid, tid, STACK_SIGNAL) != 0:
        return ""
    until = time.monotonic() + _DELIVERED_S
    while _is_set(pid, tid, "SigPnd") and time.monotonic() < until:
        time.sleep(_WRITTEN_S / 10)
    known = -1
    while (now := os.stat(path).st_size) != known and time.monotonic() < until:
        known = now
        time.sleep(_WRITTEN_S)
    return read_own(path, size).decode("utf-8", "replace") if known > size else ""


def _may_ask(path: Path, pid: int, tid: int, descriptor: object) -> bool:
    """Whether the process has our handler, still writes to our file, and the thread still waits."""
    if not isinstance(descriptor, int) or descriptor < 0:
        return False
    there, here = os.stat(f"/proc/{pid}/fd/{descriptor}"), os.stat(path)
    if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
        return False
    asleep = _stat(f"/proc/{pid}/task/{tid}/stat")[1] in _ASLEEP
    return asleep and _is_set(pid, tid, "SigCgt") and not _is_set(pid, tid, "SigBlk")


def _is_set(pid: int, tid: int, mask: str) -> bool:
    """Whether our signal is in a mask of a thread."""
    status = Path(f"/proc/{pid}/task/{tid}/status").read_text("utf-8", "replace")
    found = re.search(rf"^{mask}:\s+(\w+)", status, re.MULTILINE)
    return bool(found and int(found[1], 16) & (1 << (STACK_SIGNAL - 1)))


def _together(
    who: str, first: ProcessSeen, last: ProcessSeen, stacks: list[Stacks], apart_s: float
) -> ProcessSeen:
    before = {thread.tid: thread for thread in first.threads}
    threads = []
    for thread in last.threads:
        was = before.get(thread.tid)
        seen = [found.get((who, thread.tid), ()) for found in stacks]
        frames = next((stack for stack in reversed(seen) if stack), ())
        cpu_s = thread.cpu_s - was.cpu_s if was is not None else 0.0
        moved = was is None or len({stack for stack in seen if stack}) > 1
        threads.append(replace(thread, cpu_s=cpu_s / apart_s, frames=frames, moved=moved))
    return replace(last, threads=tuple(threads))
