"""What `rltrace wrap --live` says of a step: one line."""

from __future__ import annotations

import math

from rltrace.analysis.live.snapshot import StepDone, StepNow
from rltrace.report import units

NO_WORK = ("wait", "other")  # stages in which nothing is done for the samples
_MOST_STAGES = 4


def step_name(step: StepNow | StepDone) -> str:
    """Of one that has a number, and of one that has none."""
    return f"step {step.step}" if step.step >= 0 else "a step"


def line(step: StepDone) -> str:
    """`step 12: 2.10 s (rollout 1.20 s, train 800 ms), 1,234 tokens trained on, lag 1.2`."""
    worked = [(stage, s) for stage, s in step.tau_s.items() if stage not in NO_WORK]
    longest = sorted(worked, key=lambda one: -one[1])[:_MOST_STAGES]
    stages = ", ".join(f"{stage} {units.seconds(s)}" for stage, s in longest)
    where = f" ({stages})" if stages else ""
    parts = [f"{step_name(step)}: {units.seconds(step.step_s)}{where}"]
    if step.trained_tokens:
        parts.append(f"{units.count(step.trained_tokens)} tokens trained on")
    elif step.generated_tokens:
        parts.append(f"{units.count(step.generated_tokens)} tokens generated")
    if not math.isnan(step.mean_lag):
        parts.append(f"lag {units.number(step.mean_lag)}")
    return ", ".join(parts)


def scalars(step: StepDone) -> dict[str, float]:
    """By name; what is not known is left out."""
    values: dict[str, float] = {"rltrace/step_seconds": step.step_s}
    values |= {f"rltrace/tau_seconds/{stage}": seconds for stage, seconds in step.tau_s.items()}
    if step.generated_tokens and step.step_s > 0:
        values["rltrace/generated_tokens_per_second"] = step.generated_tokens / step.step_s
    if step.trained_samples:
        if step.step_s > 0:
            values["rltrace/trained_tokens_per_second"] = step.trained_tokens / step.step_s
        values["rltrace/trained_samples"] = step.trained_samples
        values["rltrace/mean_lag_versions"] = step.mean_lag
    return {name: value for name, value in values.items() if math.isfinite(value)}
