"""Fuzzes one target with atheris, in a process of its own: `python -m tests.fuzz.worker --help`.

libFuzzer mutates, guided by which branches of rltrace an input reaches, and keeps what reaches new
ones in the corpus. It ends at the first input that crashes, hangs or takes too much memory, and
leaves that one in the folder of findings.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

MEMORY_BYTES = 3 << 30
"""Address space, most of it libraries': what needs more is a `MemoryError`, and a finding."""

RSS_MIB = 1200
SLOWEST_CPU_S = 2.0
"""CPU of one input of a few kB, on a busy machine too."""

_LONGEST_BYTES = 8192


def main() -> None:
    """Fuzzes; exits as libFuzzer does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--findings", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int, default=-1)
    asked = parser.parse_args()

    import atheris

    with atheris.instrument_imports(include=["rltrace"]):
        from tests.fuzz.target import folder_in_memory
        from tests.fuzz.targets import TARGETS
    target = TARGETS[asked.target]
    asked.corpus.mkdir(parents=True, exist_ok=True)
    asked.findings.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (asked.corpus / f"seed-{number}").write_bytes(seed)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    with folder_in_memory() as folder:

        def once(data: bytes) -> None:
            began_s = time.process_time()
            target(data, folder)
            took_s = time.process_time() - began_s
            assert took_s < SLOWEST_CPU_S, f"{took_s:.1f} s of CPU for {len(data)} bytes"

        options = (
            f"-max_total_time={asked.seconds}",
            f"-runs={asked.runs}",
            f"-max_len={_LONGEST_BYTES}",
            f"-rss_limit_mb={RSS_MIB}",
            "-timeout=120",
            "-print_final_stats=1",
            f"-artifact_prefix={asked.findings}/",
        )
        atheris.Setup([sys.argv[0], *options, str(asked.corpus)], once)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
