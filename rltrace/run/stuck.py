"""Looks who a silent job waits for: for its node's agent, or because somebody asks."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stuck.first_cause import first_cause, silence
from rltrace.analysis.stuck.observed import ProcessSeen, Stuck
from rltrace.run.node.silence import limits_s
from rltrace.run.node.thread_stacks import computes, look_at, used
from rltrace.run.run_end import pids_of_run
from rltrace.trace.clock import node_id
from rltrace.trace.errors import RltraceError
from rltrace.trace.job_devices import AGENT
from rltrace.trace.read.run import OpenedRun, open_run

TIMES = 3.0  # a usual step, before silence means anything
_APART_S = 10.0  # two looks; frames that stay are told
_CLOCKS_NS = 10**6  # a better pair of clocks, which comes meanwhile, moves all that was recorded
_BUSY_CORES, _BUSY_BYTES_PER_S = 0.3, 1e6
_BUSY_TIMES = 10  # as long is waited for a step that computes; out of steps it is no sign at all


def look(path: str, after_s: float, first_s: float) -> None:
    """Prints, as JSON, who the run in `path` waits for, if nothing has moved in it for `after_s`
    seconds and for `TIMES` usual steps (`first_s`: before a step has ended); else in how many
    seconds to look again."""
    run = open_run(path)
    analysis = RunAnalysis(run)
    since_ns, step, usual_s = silence(analysis)
    silent_s = (run.opened_ns - since_ns) / 1e9
    limit_s = _limit_s(usual_s, after_s, first_s)
    somebody = any(_lives(facts) for facts in _of_this_node(run).values())
    if silent_s < limit_s or not somebody:
        print(json.dumps({"again_s": limit_s - silent_s if somebody else limit_s}), flush=True)
        return
    apart_s = min(_APART_S, after_s)
    pids = [pid for pid in pids_of_run(Path(path)) if pid != os.getpid()]
    before, began = used(pids), time.monotonic()
    dumps = 2 if "stuck_after_s" in (run.meta.get("settings") or {}) else 0  # as was asked for
    seen = look_at(Path(path), _of_this_node(run), apart_s, dumps)
    passed_s, after = time.monotonic() - began, used(pids)
    later = open_run(path)
    it_moves = silence(RunAnalysis(later))[0] > since_ns + _CLOCKS_NS
    is_early = step < 0 or silent_s < _BUSY_TIMES * limit_s
    if it_moves or (is_early and (_is_busy(before, after, passed_s) or computes(pids))):
        print(json.dumps({"again_s": limit_s}), flush=True)  # it is slow
        return
    print(json.dumps(first_cause(analysis, seen, later.opened_ns).told()), flush=True)


def on_demand(path: Path) -> tuple[Stuck, dict[str, ProcessSeen]]:
    """Who the run in `path` waits for, whether it is stuck or not, and where its processes on this
    node are. Threads in a poll or a sleep are asked, too. Errors: `RltraceError`."""
    run = open_run(path)
    processes = _of_this_node(run)
    living = [facts for facts in processes.values() if _lives(facts)]
    if not living:
        raise RltraceError(f"no process of {path.name} lives on this node: nothing to look at")
    if os.geteuid() not in (0, os.stat(f"/proc/{living[0].get('pid')}").st_uid):
        raise RltraceError(f"the processes of {path.name} are another user's: ask as that user")
    seen = look_at(path, processes, 2.0, also_polls=True)
    later = open_run(path)
    analysis = RunAnalysis(later)
    found = first_cause(analysis, seen, later.opened_ns)
    limit_s = _limit_s(silence(analysis)[2], *limits_s(later.meta.get("settings") or {}))
    return replace(found, moves=found.seen_ns - found.since_ns < limit_s * 1e9), seen


def _limit_s(usual_s: float, after_s: float, first_s: float) -> float:
    """How long nothing has to move in a stuck job."""
    return max(after_s, TIMES * usual_s) if 0 < usual_s < math.inf else max(after_s, first_s)


def _lives(facts: Mapping[str, Any]) -> bool:
    return os.path.exists(f"/proc/{facts.get('pid', -1)}")


def _of_this_node(run: OpenedRun) -> dict[str, Mapping[str, Any]]:
    node = node_id()
    return {p.who: p.facts for p in run.processes if p.node == node and p.role != AGENT}


def _is_busy(
    before: Mapping[int, tuple[float, float]], after: Mapping[int, tuple[float, float]], s: float
) -> bool:
    """Whether a process computes, or moves bytes: what takes long is then no sign."""
    both = ((before[pid], now) for pid, now in after.items() if pid in before)
    return any(
        now[0] - was[0] > _BUSY_CORES * s or now[1] - was[1] > _BUSY_BYTES_PER_S * s
        for was, now in both
    )
