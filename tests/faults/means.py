"""What some faults take to make, and not every machine allows."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

_ALL = "RLTRACE_TEST_ALL_FAULTS"


def cannot_be_made(why: str) -> NoReturn:
    """Leaves a test out where its fault cannot be made. Where all must be, as before a change lands
    (`.ci/run`), the test fails: it would else pass by saying nothing."""
    if os.environ.get(_ALL):
        pytest.fail(f"{why} ({_ALL} is set)")
    pytest.skip(f"this fault needs a right or a compiler that this machine does not give: {why}")
