"""Summaries, each made once for all tests."""

from __future__ import annotations

from functools import cache

import pytest

from rltrace.testing.inside.analysis import summarize
from tests.report.summaries import Summaries, run_of_kind


@pytest.fixture(scope="session")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summaries:
    """`summary(kind)`, one of `summaries.KINDS`."""
    return cache(lambda kind: summarize(run_of_kind(kind, tmp_path_factory.mktemp("run"))))
