"""What tracing costs beside another checkout of rltrace: spans, hooked calls, start of a process.

    python -m benchmarks.against CHECKOUT [--rounds 30] [--json]

Processes of the two checkouts take turns; each times itself in CPU time. The limit is on the median
of the ratios, turn by turn: this checkout may take 3 % more than the other.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import click
import numpy as np

from benchmarks.measuring import Check, Result, spread, take_turns

HERE = Path(__file__).parents[1]
LIMIT = 1.03

TIMED = """
import sys, tempfile, time
import rltrace
from rltrace.hooks import recorder
from rltrace.hooks.hook import Hook
from rltrace.hooks.patch.call_observer import Observer
from rltrace.hooks.patch.wrapping import wrap
from rltrace.trace.run_dir import create_run

def loop(count):
    for _ in range(count): pass
def nested(count):
    span = rltrace.span
    for i in range(count // 2):
        with span("rollout", "generate", step=i, version=4, tokens=512), span("env", "tool"): pass
def plain(count):
    span = rltrace.span
    for _ in range(count):
        with span("env"): pass
def job(a, b=2, *, c=3): return a
hooked = wrap(job, Observer(Hook("x:job", "train")))
told = wrap(job, Observer(Hook("x:told", "train", after=lambda call: None)))
def calls(function):
    def run(count):
        for i in range(count): function(i, b=i)
    return run
ways = {"nested": nested, "plain": plain, "idle": plain}
ways |= {"hooked": calls(hooked), "told": calls(told)}
with tempfile.TemporaryDirectory() as folder:
    create_run(folder + "/run", [], {}, "0")
    which = sys.argv[1]
    if which != "idle":
        recorder.start(folder + "/run")
    run, best = ways[which], []
    for _ in range(12):
        before = time.thread_time_ns(); loop(20000); between = time.thread_time_ns()
        run(20000)
        best.append((time.thread_time_ns() - between - (between - before)) / 20000)
print(min(best))
"""


def _timed(which: str, checkout: Path) -> float:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RLTRACE_")}
    environment["PYTHONPATH"] = str(checkout)
    done = subprocess.run(
        [sys.executable, "-c", TIMED, which],
        env=environment, cwd=checkout, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


BOOT = """
import subprocess, sys, os
from benchmarks.measuring import child_cpu_ms
print(min(child_cpu_ms([sys.executable, "-c", "pass"], os.environ) for _ in range(10)))
"""


def _boot(checkout: Path) -> float:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RLTRACE_")}
    environment["PYTHONPATH"] = str(checkout)
    with tempfile.TemporaryDirectory() as folder:
        main = "import sys; from rltrace.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", main, "wrap", "--out", f"{folder}/run", "--",
             sys.executable, "-c", BOOT],
            env=environment, cwd=checkout, capture_output=True, text=True, check=True,
        )  # fmt: skip
    return float(done.stdout)


@click.command()
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rounds", default=30, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(checkout: Path, rounds: int, as_json: bool) -> None:
    """Compares; exits 1 when a limit is missed."""
    for place in (HERE, checkout):
        compileall.compile_dir(place / "rltrace", quiet=2)
    result = Result("Beside the other checkout", "this / other, CPU time")
    for which in ("plain", "nested", "hooked", "told", "idle", "boot"):
        measure = _boot if which == "boot" else partial(_timed, which)
        turns = {str(place): partial(measure, place) for place in (HERE, checkout.resolve())}
        ours, theirs = take_turns(turns, rounds).values()
        ratios = spread(list(np.array(ours) / np.array(theirs)))
        result.rows[which] = ratios
        result.checks.append(Check(which, ratios.median, LIMIT, "times the other"))
        unit = "ms" if which == "boot" else "ns"
        result.notes[which] = f"{np.median(ours):.2f} {unit}, the other {np.median(theirs):.2f}"
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
