"""Fuzzes one target with atheris, in a process of its own.

libFuzzer mutates, guided by which branches of the target's modules an input reaches, and keeps what
reaches new ones in the corpus. It ends at the first input that crashes, hangs or takes too much
memory, and leaves that one in the folder of findings.
"""

from __future__ import annotations

import gc
import random
import resource
import sys
import time
from hashlib import sha1
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

from tests.fuzz.mutations import mutated
from tests.fuzz.target import Target, spare

MEMORY_BYTES = 3 << 30
"""Address space, most of it libraries': what needs more is a `MemoryError`, and a finding."""

RSS_MIB = 1200
SLOWEST_CPU_S = 2.0
"""CPU of one input of a few kB, on a busy machine too."""

_LEAST_BYTES, _MOST_BYTES = 2048, 8192
"""Of the longest input that is tried: twice as long as the good ones, within these."""
_BY_BYTES = 0.5


def fuzz(target: Target, folder: Path, corpus: Path, findings: Path, seconds: int) -> None:
    """Fuzzes for so long, and ends this process as libFuzzer does. `folder` is for the inputs, and
    whoever gives it has it deleted."""
    import atheris

    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    seeds = target.seeds()
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    spare()

    for seed in seeds:  # what is imported late is there by then
        target(seed, folder)
    _count_branches(atheris, target.modules)
    gc.freeze()  # what is there by now stays: it need not be looked through again and again

    def once(data: bytes) -> None:
        began_s = time.process_time()
        try:
            target(data, folder)
            took_s = time.process_time() - began_s
            assert took_s < SLOWEST_CPU_S, f"{took_s:.1f} s of CPU for {len(data)} bytes"
        except BaseException:  # libFuzzer keeps the input only where the process ends as it likes
            (findings / f"raised-{sha1(data).hexdigest()}").write_bytes(data)
            raise

    def mutate(data: bytes, most_bytes: int, number: int) -> bytes:
        """Byte by byte a text is soon none: half of what is tried changes whole values."""
        randomness = random.Random(number)
        if randomness.random() < _BY_BYTES:
            return bytes(atheris.Mutate(data, most_bytes))
        return mutated(data, randomness.choice(seeds), randomness)[:most_bytes]

    options = (
        f"-max_total_time={seconds}",
        f"-max_len={min(_MOST_BYTES, max(_LEAST_BYTES, 2 * max(map(len, seeds))))}",
        f"-rss_limit_mb={RSS_MIB}",
        "-timeout=600",
        "-report_slow_units=600",  # by the clock: what counts is CPU, which `once` looks at
        "-entropic_scale_per_exec_time=1",  # of inputs that reach as much, the quicker ones
        "-print_final_stats=1",
        f"-artifact_prefix={findings}/",
    )
    atheris.Setup([sys.argv[0], *options, str(corpus)], once, custom_mutator=mutate)
    atheris.Fuzz()


def _count_branches(atheris: Any, modules: tuple[str, ...]) -> None:
    """Has the functions of these modules tell libFuzzer which branches are taken. It makes them two
    or three times as slow: those which an input is only passed through are left as they are."""
    for module in modules:
        import_module(module)
    for found in gc.get_objects():
        if isinstance(found, FunctionType) and found.__module__ in modules:
            atheris.instrument_func(found)
