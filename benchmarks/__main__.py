"""Every benchmark, one after the other: `python -m benchmarks`. Exits 1 when a limit is missed.

Takes about ten minutes; run it on a machine that does nothing else.
"""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    "span_cost",
    "boot_cost",
    "kill_survival",
    "batch_cost",
    "overhead",
    "report_scale",
    "timeline_scale",
    "planned",
    "learning",
)


def main() -> int:
    """Runs each in a process of its own."""
    missed = []
    for name in BENCHMARKS:
        print(f"\n{name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            missed.append(name)
    print(f"\nmissed: {', '.join(missed)}" if missed else "\nall limits kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
