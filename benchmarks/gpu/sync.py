"""Weights between processes of one GPU, and between it and its host.

    python -m benchmarks.gpu.sync [--gib 14] [--cpu] [--json FILE]

What is measured stands in the functions `part_...` of `parts.py`; each is guarded, so that one that
fails is a line of the table, and the next one comes. Floors are of the same run: a copy of a large
buffer on the device, reading one, and page-locked copies over the link. `--cpu` does all of it in
small by the stand-in (stand_in.py), which shows only that it runs.

Two more processes take part; each that does not answer in time is killed, and after `--limit-s` the
whole ends, with what was written down so far.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import sys
import time
from pathlib import Path

REPS, LIMIT_S = 7, 240
_REPS_IN_SMALL = 2


def main(words: list[str] | None = None) -> int:
    """Returns 1 where a part failed."""
    parser = argparse.ArgumentParser(description="rltrace.sync on a GPU")
    parser.add_argument("--gib", type=float, default=14.0, help="of weights")
    parser.add_argument("--cpu", action="store_true", help="in small, without a GPU")
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--limit-s", type=int, default=LIMIT_S, help="when it ends at the latest")
    parser.add_argument("--only", default="", help="parts whose name begins so, by commas")
    given = parser.parse_args(words)
    logging.basicConfig(level=logging.WARNING)  # as why Triton is not used, or memory not locked
    faulthandler.dump_traceback_later(given.limit_s, exit=True)
    if given.cpu:
        os.environ["RLTRACE_SYNC_DEVICE"] = "benchmarks.gpu.stand_in"
        given.gib = min(given.gib, 0.01)
    reps = _REPS_IN_SMALL if given.cpu else REPS
    began = time.perf_counter()
    try:
        from benchmarks.gpu.parts import Parts
        from benchmarks.gpu.report import Report

        report = Report({"gib": given.gib, "cpu": given.cpu}, given.json)
        with Parts(report, given.gib, given.cpu, reps, given.limit_s) as parts:
            for name, part in parts.listed():
                if not given.only or name.startswith(tuple(given.only.split(","))):
                    report.part(name, part)
    finally:
        faulthandler.cancel_dump_traceback_later()
    report.about["seconds"] = time.perf_counter() - began
    report.write()
    print(report.table())
    print(
        f"{report.about['seconds']:.1f} s; "
        + ", ".join(f"{name} {seconds:.1f}" for name, seconds in report.took_s.items())
    )
    for name, text in report.failed.items():
        print(f"\n{name}\n{text}", file=sys.stderr)
    return bool(report.failed)


if __name__ == "__main__":
    sys.exit(main())
