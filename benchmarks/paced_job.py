"""The demo's job, one step at a time: it takes each step when it is told to.

    python -m benchmarks.paced_job FD STEPS SEED

After every step a line of JSON goes to descriptor FD; the next step waits for a line on stdin.
"""

from __future__ import annotations

import json
import os
import sys

from rltrace.trainer import StepRecord, TrainerConfig, train


def main(descriptor: int, steps: int, seed: int) -> None:
    """Trains with the demo's settings."""
    with os.fdopen(descriptor, "w", buffering=1) as reports:

        def report(record: StepRecord) -> None:
            told = {"step": record.step, "seconds": record.seconds}
            print(json.dumps({**told, "tokens": record.tokens_generated}), file=reports)
            sys.stdin.readline()

        train(TrainerConfig(steps=steps, seed=seed), on_step=report)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
