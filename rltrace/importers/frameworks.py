"""Whose log it is, told by the names of its metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rltrace.importers.log import Log
from rltrace.trace.errors import WRONG_USAGE, RltraceError

NAMES: Mapping[str, str] = {"verl": "verl", "openrlhf": "OpenRLHF"}
"""Framework -> its name in prose."""

_MARKS: Mapping[str, re.Pattern[str]] = {
    "verl": re.compile(r"timing_s/"),
    "openrlhf": re.compile(
        r"(train/)?(timing/(generation|make_experience|ppo_train|broadcast|step_total)"
        r"|(actor|critic)_lr)$"
    ),
}
"""Framework -> what one of its metrics, and none of another's, begins with."""


def check_framework(log: Log, framework: str) -> None:
    """Errors: `RltraceError` where the log is another framework's."""
    names = {name for record in log.records for name in record.metrics}
    if any(_MARKS[framework].match(name) for name in names):
        return
    for other, mark in _MARKS.items():
        if any(mark.match(name) for name in names):
            raise RltraceError(
                f"{log.path} looks like a log of {NAMES[other]}, not of {NAMES[framework]}: "
                f"rltrace import {other}",
                WRONG_USAGE,
            )
