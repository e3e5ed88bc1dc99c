"""A job in which everything happens that the dashboards show, until its input ends."""

from __future__ import annotations

import select
import sys
import time

import rltrace

GROUP = 4


def sample(step: int, number: int) -> str:
    """Generates one, with a tool call within; its id."""
    name = f"{step}/{number}"
    with rltrace.trajectory(name, group=step, version=max(0, step - 1)) as trajectory:
        time.sleep(0.02)
        trajectory.first_token()
        with rltrace.span("env"):
            time.sleep(0.01)
        trajectory.finish("stop", response_tokens=100 + number)
    return name


def one(step: int) -> None:
    """A step of about half a second."""
    with rltrace.step(step), rltrace.trajectory(f"slow {step}", group=-1, version=step):
        with rltrace.span("rollout"):
            names = [sample(step, number) for number in range(GROUP)]
        for number, name in enumerate(names):
            with rltrace.reward(name) as verdict:
                time.sleep(0.005)
                verdict.set(value=number % 2)
        with rltrace.span("train"):
            time.sleep(0.1)
            for number, name in enumerate(names):
                rltrace.use(name, "stale" if number == 0 else "trained", version=step)
            rltrace.use(f"unknown {step}", "trained", version=step, tokens=5)
        for role in ("source", "sink"):
            with rltrace.weight_update(step + 1, role=role, bytes=1_000_000):
                time.sleep(0.02)
    readings = {"busy_percent": 60, "memory_used_bytes": 6e10, "memory_total_bytes": 8e10}
    for counter, value in {**readings, "power_watts": 400}.items():
        rltrace.counter(f"gpu/{counter}", value, device=0)


if __name__ == "__main__":
    number = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        one(number)
        number += 1
