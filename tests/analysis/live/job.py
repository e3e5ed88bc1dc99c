"""A small job with two processes, recorded through `rltrace`'s functions: `job.py --steps 12`."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from contextlib import suppress
from multiprocessing.connection import Connection

import rltrace

SAMPLES = 4


def worker(orders: Connection, learners: Connection) -> None:
    """Generates a step's samples each time it is told a version, until that is -1 or the learner,
    whose end it has from the fork, is gone."""
    learners.close()
    with suppress(EOFError, BrokenPipeError):
        while (version := orders.recv()) >= 0:
            with rltrace.span("rollout"):
                for sample in range(SAMPLES):
                    own_id = f"{version}-{sample}"
                    with rltrace.trajectory(own_id, group=version, version=version) as made:
                        time.sleep(0.01)
                        made.first_token()
                        made.finish("stop", response_tokens=10 + sample, version=version)
                    rltrace.reward(own_id, float(sample % 2 and version % 3))
            orders.send(None)


def main() -> None:
    """The learner's loop: it trains on what was generated a step before."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--train-s", type=float, default=0.05)
    given = options.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=worker, args=(theirs, ours))
    process.start()
    for step in range(given.steps):
        with rltrace.step(step):
            ours.send(step)
            with rltrace.span("train"):
                time.sleep(given.train_s)
                for sample in range(SAMPLES if step else 0):
                    rltrace.use(f"{step - 1}-{sample}", version=step, tokens=10 + sample)
            with rltrace.span("wait", name="samples"):
                ours.recv()
            with rltrace.weight_update(step + 1, bytes=1000):
                time.sleep(0.005)
    ours.send(-1)
    process.join()


if __name__ == "__main__":
    main()
