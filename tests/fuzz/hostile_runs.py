"""What every command makes of runs, logs and settings that are oversized or odd.

A case is a seed: which good run it begins with, what is done to it, and which command reads it. The
inputs are small on the disk; what they state is not.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rltrace
from rltrace.testing.handmade_runs import process, rows, run_of, turns
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.fuzz.hostile_inputs import KINDS

MOST_CPU_S, MOST_MB = 20.0, 2000.0
CODES = (0, 1, 2, 3, 4)  # 70 is a mistake of ours, and anything else a crash
_KILLED_AFTER_CPU_S = 60
_STEPS = 12

TELLS_PEAK = """
import re, sys
from rltrace.entry import main
told = open(sys.argv.pop(1), "w")
try:
    main()
finally:
    told.write(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
"""A command that writes down the most memory it had, kB; `ru_maxrss` begins with its parent's."""


@dataclass(frozen=True)
class Outcome:
    """What a command did; `wrong` says what is not right, and is empty where all is."""

    seed: int
    what: str
    command: str
    code: int
    cpu_s: float
    peak_mb: float
    wrong: str


def make_good(folder: Path) -> None:
    """The good runs that cases begin with: `segments`, `compacted`, and a `baseline.json`."""
    ids = [f"{step}-{i}" for step in range(_STEPS) for i in range(4)]
    groups = [f"{step}" for step in range(_STEPS) for _ in range(4)]
    at = [10.0 * step for step in range(_STEPS) for _ in range(4)]
    steps = [step for step in range(_STEPS) for _ in range(4)]
    begun = [t + 0.1 for t in at]
    ended = [t + 2 + i % 4 for i, t in enumerate(at)]
    made = process("trainer", *turns(*[6.0] * _STEPS))
    sampled: dict[str, Any] = {"trajectory": ids, "group": groups, "first_version": steps}
    sampled |= {"last_version": steps, "response_tokens": 100, "finish": "stop"}
    rows(made, "trajectories", start_s=begun, end_s=ended, **sampled)
    value = [float(i % 2) for i in range(len(ids))]
    rows(made, "rewards", trajectory=ids, start_s=ended, end_s=ended, value=value, outcome="ok")
    used = [t + 9 for t in at]
    tokens = [100] * len(ids)
    rows(made, "uses", trajectory=ids, step=steps, version=steps, time_s=used, tokens=tokens,
         fate="trained")  # fmt: skip
    began = [10.0 * step + 9.5 for step in range(_STEPS)]
    rows(made, "syncs", version=[*range(_STEPS)], start_s=began, end_s=[t + 0.2 for t in began],
         bytes=1000, role="source")  # fmt: skip
    rows(made, "samples", counter="cpu", time_s=began, value=[0.5] * _STEPS, device=0)
    run_of(folder, made, end_real_ns=made.spans[-1][1] + 10**9)
    (folder / "run").rename(folder / "segments")
    shutil.copytree(folder / "segments", folder / "compacted")
    compact(rltrace.open_run(folder / "compacted"))
    for segments in (folder / "compacted").glob("*/*.arrows"):
        segments.unlink()
    baseline = [sys.executable, "-m", "rltrace", "baseline", "segments", "--anyway"]
    done = [*baseline, "-o", "baseline.json"]
    subprocess.run(done, cwd=folder, check=True, capture_output=True)


def tried(seed: int, good: Path, folder: Path) -> Outcome:
    """Makes the case of a seed in an empty folder and runs its command there."""
    randomness = random.Random(seed)
    for name in ("segments", "compacted"):
        shutil.copytree(good / name, folder / name)
    shutil.copy(good / "baseline.json", folder)
    run = folder / randomness.choice(("segments", "segments", "compacted"))
    what, command = randomness.choice(KINDS)(run, randomness)
    command = [word.replace("{run}", run.name) for word in command]
    return _measured(seed, f"{run.name}: {what}", command, folder)


def _measured(seed: int, what: str, command: list[str], folder: Path) -> Outcome:
    (folder / "peak").touch()
    words = [sys.executable, "-c", TELLS_PEAK, folder / "peak", *command]
    with open(folder / "err", "w+b") as err, open(folder / "out", "w+b") as out:
        child = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=err)  # fmt: skip
        most = (_KILLED_AFTER_CPU_S, _KILLED_AFTER_CPU_S)
        resource.prlimit(child.pid, resource.RLIMIT_CPU, most)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = code = os.waitstatus_to_exitcode(status)
        err.seek(0)
        said = err.read().decode("utf-8", "replace")
    cpu_s = usage.ru_utime + usage.ru_stime
    told = (folder / "peak").read_text()  # empty where it was killed
    peak_mb = int(told) / 1024 if told else usage.ru_maxrss / 1024
    wrong = []
    if code not in CODES:
        wrong.append(f"exit code {code}: {said.strip()[-200:]}")
    elif "Traceback" in said or (code == 4 and not said.startswith("rltrace: ")):
        wrong.append(f"no sentence: {said[-200:]!r}")
    if cpu_s > MOST_CPU_S:
        wrong.append(f"{cpu_s:.0f} s of CPU")
    if peak_mb > MOST_MB:
        wrong.append(f"{peak_mb:.0f} MB")
    return Outcome(seed, what, " ".join(command), code, cpu_s, peak_mb, "; ".join(wrong))
