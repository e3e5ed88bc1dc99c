"""A run with a probe whose truth is known: which of its two stages holds the step up."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rltrace.testing.handmade_runs import process, rows
from rltrace.testing.inside.analysis import Summary
from rltrace.testing.inside.hooks import Design
from rltrace.testing.inside.trace import Stage
from tests.analysis.walls.walled import summary_of

STEPS = 60
BUDGET = 0.1


def probed(path: Path, binds: str, beside: bool, given: float = 1.0) -> Summary:
    """A run of steps of about 10 s with doses of both stages, of which only `binds` lengthens them.
    `beside`: engines generate all through the step, and training runs for nine tenths of it; else
    generation takes 6 s, then training 4 s, and both bind. `given`: how much of the doses came."""
    design = Design(("rollout", "train"), BUDGET, 4)
    rng = np.random.default_rng(4)
    driver, actors, learner = process("controller"), process("rollout"), process("learner")
    counters: list[tuple[float, str, float]] = []
    now = 0.0
    for n in range(STEPS):
        doses = design.doses(n)
        dose = {stage: doses.get(stage, 0.0) for stage in ("rollout", "train")}
        length_s = {"rollout": 10.0 if beside else 6.0, "train": 9.0 if beside else 4.0}
        work_s = {stage: s * float(rng.uniform(0.98, 1.02)) for stage, s in length_s.items()}
        took_s = {stage: work_s[stage] * (1 + dose[stage] * given) for stage in work_s}
        if beside:
            ends = now + (10 + work_s["train"] * dose["train"] * given if binds == "train" else
                          took_s["rollout"])  # fmt: skip
            generates, trains = (now, ends), (now + 1, ends)
        else:
            ends = now + sum(took_s.values())
            generates, trains = (now, now + took_s["rollout"]), (now + took_s["rollout"], ends)
        driver.spans += process("controller", (("step", n), now, ends)).spans
        actors.spans += process("rollout", (Stage.ROLLOUT, *generates)).spans
        learner.spans += process("learner", (Stage.TRAIN, *trains)).spans
        for stage, worked in work_s.items():
            counters += [(now + 0.1, f"probe/{stage}/planned", dose[stage]),
                         (ends - 0.1, f"probe/{stage}/worked", worked)]  # fmt: skip
            if dose[stage]:
                slept = worked * dose[stage] * given
                counters.append((ends - 0.1, f"probe/{stage}/slept", slept))
        now = ends
    times, names, values = (list(column) for column in zip(*counters, strict=True))
    rows(driver, "samples", time_s=times, counter=names, value=values)
    return summary_of(path, driver, actors, learner, settings={"probe": design.settings()})
