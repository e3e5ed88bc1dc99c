"""What rltrace adds to the start of a Python process: `python -c pass`, traced and not, and what
`import rltrace` takes of one that asks for it.

    python -m benchmarks.boot_cost [--rounds 60] [--json]

CPU time, user and system, of whole child processes. Two virtual environments differ in nothing but
what the wheel installs: the package, with its bytecode, and its one-line .pth. The measurement runs
as a job under `rltrace wrap`, so the traced processes get what a job's processes get, and the
node's agent is there already, as it is for all processes of a job but the first.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from functools import partial
from pathlib import Path

import click
import numpy as np

import rltrace
from benchmarks.measuring import Check, Result, child_cpu_ms, interval, spread, take_turns
from rltrace.testing.inside.hooks import SITE
from rltrace.testing.inside.trace import RUN_VARIABLE

BARE = "no rltrace installed"
NO_RUN = "wheel installed, no run"
TRACED = "wheel installed, traced"
CARRIED = "not installed, traced through PYTHONPATH"
IMPORTED = "wheel installed, no run, import rltrace"

LIMITS_MS = {NO_RUN: 1, TRACED: 10, CARRIED: 10, IMPORTED: 30}


def environments(folder: Path) -> tuple[Path, Path]:
    """Two interpreters: without rltrace, and with what its wheel installs."""
    for name in ("bare", "equipped"):
        venv.create(folder / name, symlinks=True)
    [packages] = (folder / "equipped").glob("lib/python*/site-packages")
    package = Path(rltrace.__file__).parent
    shutil.copytree(package, packages / "rltrace")
    compileall.compile_dir(packages / "rltrace", quiet=2)
    shutil.copy(package / "hooks/site/rltrace.pth", packages)
    return folder / "bare/bin/python", folder / "equipped/bin/python"


def without_run() -> dict[str, str]:
    """This process's environment with all that `wrap` put there taken out."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("RLTRACE_")}
    paths = [p for p in plain.pop("PYTHONPATH", "").split(os.pathsep) if p not in ("", SITE)]
    return plain | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})


def measure(rounds: int, as_json: bool) -> int:
    """Takes the figures; the exit code."""
    plain = without_run()
    with tempfile.TemporaryDirectory() as folder:
        bare, equipped = environments(Path(folder))
        [site] = Path(folder).glob("equipped/lib/python*/site-packages/rltrace/hooks/site")
        traced = os.environ | {"PYTHONPATH": os.environ["PYTHONPATH"].replace(SITE, str(site))}
        cases = {
            BARE: (bare, "pass", plain),
            NO_RUN: (equipped, "pass", plain),
            TRACED: (equipped, "pass", traced),
            CARRIED: (bare, "pass", traced),
            IMPORTED: (equipped, "import rltrace", plain),
        }
        turns = {
            name: partial(child_cpu_ms, [str(python), "-c", program], environment)
            for name, (python, program, environment) in cases.items()
        }
        take_turns(turns, 3)  # bytecode and page cache
        taken = take_turns(turns, rounds)
    result = Result("Start of `python -c pass`", "ms of CPU")
    result.rows = {name: spread(values) for name, values in taken.items()}
    for name, limit in LIMITS_MS.items():
        added = np.subtract(taken[name], taken[BARE])
        low, high = interval(added)
        result.notes[f"{name}, added"] = (
            f"{np.median(added):.2f} ms, 95 % interval {low:.2f} to {high:.2f}"
        )
        what = f"{name}: upper bound of what is added"
        result.checks.append(Check(what, high, limit, "ms", low, high))
    return result.finish(as_json)


@click.command()
@click.option("--rounds", default=60, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(rounds: int, as_json: bool) -> None:
    """CPU that rltrace adds to the start of a process; exits 1 when a limit is missed."""
    if RUN_VARIABLE in os.environ:
        sys.exit(measure(rounds, as_json))
    with tempfile.TemporaryDirectory() as folder:
        wrap = [sys.executable, "-m", "rltrace", "wrap", "--out", f"{folder}/run", "--"]
        command = [sys.executable, "-m", "benchmarks.boot_cost", *sys.argv[1:]]
        sys.exit(subprocess.run([*wrap, *command], check=False).returncode)


if __name__ == "__main__":
    main()
