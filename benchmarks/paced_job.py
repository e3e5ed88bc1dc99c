"""The demo's job, one step at a time: it takes each step when it is told to.

    python -m benchmarks.paced_job FD STEPS SEED

After every step a line of JSON goes to descriptor FD; the next step waits for a line on stdin.
"""

from __future__ import annotations

import json
import os
import sys
import time

from rltrace.trainer import StepRecord, TrainerConfig, train


def main(descriptor: int, steps: int, seed: int) -> None:
    """Trains with the demo's settings, but for the learning rate. It is 0: two jobs of a seed then
    have the same policy and the same work in every step, however the last bits of sums differ."""
    with os.fdopen(descriptor, "w", buffering=1) as reports:
        told_ns = time.perf_counter_ns()  # when the step was told to go on; a wait is no part of it

        def report(record: StepRecord) -> None:
            nonlocal told_ns
            told = {"step": record.step, "seconds": (time.perf_counter_ns() - told_ns) / 1e9}
            print(json.dumps({**told, "tokens": record.tokens_generated}), file=reports)
            sys.stdin.readline()
            told_ns = time.perf_counter_ns()

        config = TrainerConfig(steps=steps, seed=seed, learning_rate=0.0)
        train(config, on_step=report)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
