"""The summary of a step as scalars, under the names that a tracker shows."""

from __future__ import annotations

import math

from rltrace.analysis.live.snapshot import StepDone


def scalars(step: StepDone) -> dict[str, float]:
    """By name; what is not known is left out."""
    values: dict[str, float] = {"rltrace/step_seconds": step.seconds}
    for stage, seconds in step.tau_s.items():
        values[f"rltrace/tau_seconds/{stage}"] = seconds
    if step.generated_tokens and step.seconds > 0:
        values["rltrace/generated_tokens_per_second"] = step.generated_tokens / step.seconds
    if step.trained_samples:
        if step.seconds > 0:
            values["rltrace/trained_tokens_per_second"] = step.trained_tokens / step.seconds
        values["rltrace/trained_samples"] = step.trained_samples
        values["rltrace/mean_lag_versions"] = step.mean_lag
    return {name: value for name, value in values.items() if math.isfinite(value)}
