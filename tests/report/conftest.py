"""Summaries, each made once for all tests."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from rltrace.testing.inside.analysis import Summary, summarize
from tests.report.summaries import Summaries, run_of_kind


@pytest.fixture(scope="session")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summaries:
    """`summary(kind)`, one of `summaries.KINDS`."""

    @cache
    def made(kind: str) -> Summary:
        found = summarize(run_of_kind(kind, tmp_path_factory.mktemp("run")))
        return replace(found, run=replace(found.run, path="jobs/run"))  # as it would be named

    return made
