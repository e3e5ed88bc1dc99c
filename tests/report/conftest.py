"""Summaries, each made once for all tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rltrace.testing.inside.analysis import Summary
from tests.report.summaries import summary_of


@pytest.fixture(scope="session")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Summary]:
    """`summary(kind)`, one of `summaries.KINDS`."""
    made: dict[str, Summary] = {}

    def of(kind: str) -> Summary:
        if kind not in made:
            made[kind] = summary_of(kind, tmp_path_factory.mktemp("run"))
        return made[kind]

    return of
