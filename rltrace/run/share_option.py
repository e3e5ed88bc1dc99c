"""A share of the samples as people write it: `--sample 10%`."""

from __future__ import annotations

from rltrace.trace.errors import WRONG_USAGE, RltraceError


def share_of(text: str) -> float:
    """A share above 0 and below 1: "10%", "0.1". Errors: `RltraceError` for anything else."""
    number = text.strip()
    try:
        share = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise RltraceError(
            f"--sample {text}: write a share of the samples above 0 and below 100 %, as 10%; all "
            "are recorded without it",
            WRONG_USAGE,
        )
    return share
