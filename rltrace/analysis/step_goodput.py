"""Useful tokens step by step: which of them trained on what, of the kind that goodput counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.devices import count_devices
from rltrace.analysis.samples import TRAINED_SAMPLES
from rltrace.analysis.steps import Steps

if TYPE_CHECKING:
    from rltrace.trace.run import Run


@dataclass(frozen=True)
class StepGoodput:
    """Response tokens that were booked as trained on within a step, and those of them that are
    useful as far as is known; NaN where the devices are not known."""

    trained_tokens: int
    useful_tokens: int
    useful_tokens_per_device_s: float


def step_goodput(run: Run, steps: Steps) -> tuple[StepGoodput, ...]:
    """A figure for each of `Steps.windows`; tokens that were booked between steps are in none."""
    rows = run.ask(f"""
        {TRAINED_SAMPLES}
        select time_ns, sum(coalesce(tokens, 0))::bigint,
               coalesce(sum(coalesce(tokens, 0)) filter (coalesce(signal, true)), 0)::bigint
        from trained left join signals using ("group") group by time_ns
    """)
    time, trained, useful = np.array(rows, np.int64).reshape(-1, 3).T
    starts = np.array([window.start_ns for window in steps.windows], np.int64)
    ends = np.array([window.end_ns for window in steps.windows], np.int64)
    place = np.searchsorted(starts, time, side="right") - 1
    inside = (place >= 0) & (time <= np.append(ends, 0)[place])
    tokens = np.zeros((len(starts), 2), np.int64)
    np.add.at(tokens, place[inside], np.stack([trained, useful], axis=1)[inside])
    devices = count_devices(run).count
    return tuple(
        StepGoodput(
            int(all_tokens),
            int(useful_tokens),
            useful_tokens / (devices * window.length_s)
            if devices and window.length_s
            else math.nan,
        )
        for window, (all_tokens, useful_tokens) in zip(steps.windows, tokens, strict=True)
    )
