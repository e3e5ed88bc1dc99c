"""What a framework's `log.toml` holds is what readers of logs look for."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rltrace.adapters.log_table import log_tables
from rltrace.testing.inside.trace import Stage

KEYS = {
    *("framework", "name", "marks", "like", "only_rl", "console", "labels", "epochs", "older"),
    *("step", "numbers", "cut", "prefix", "complete", "rest", "beside", "sums", "history"),
    *("inside", "after", "aside", "waits_for", "holds", "unknown", "figures", "known"),
    *("settings", "spans", "objects", "trainers", "learner", "of_sum", "of_clock"),
}
TIMERS = ("inside", "after", "aside")
KNOWN = {
    *("reward", "no_signal", "truncated", "response_tokens", "longest_tokens", "entropy", "lag"),
    *("longest_generation_s", "mean_generation_s"),
}
SHAPES = {"items", "dict", "lines", "rows", "timers"}
STAGES = {stage.name.lower() for stage in Stage}
OF_TRAINER = {"with", "without", "longer", "name", "placement", "version", "previous", "inside",
              "aside", "after", "holds", "unknown", "figures"}  # fmt: skip


@pytest.fixture(params=sorted(log_tables()))
def table(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The table of each framework."""
    return log_tables()[request.param]


def test_a_table_has_only_keys_that_are_looked_for(table: dict[str, Any]) -> None:
    assert table.keys() <= KEYS
    assert all(trainer.keys() <= OF_TRAINER for trainer in table.get("trainers", ()))
    assert table.get("known", {}).keys() <= KNOWN


def test_timers_and_what_is_unknown_name_stages(table: dict[str, Any]) -> None:
    parts = [table, *table.get("trainers", ())]
    named = [stage for one in parts for part in TIMERS for stage in one.get(part, {}).values()]
    named += [stage for one in parts for stage in one.get("unknown", {})]
    named += [*table.get("waits_for", {}).values(), *table.get("spans", {}).values()]
    assert {*named} <= STAGES


def test_a_console_s_forms_can_be_found(table: dict[str, Any]) -> None:
    for form in table.get("console", ()):
        assert form.keys() <= {"shape", "word", "begins", "between", "sections"}
        assert form["shape"] in SHAPES
        assert ("between" in form) == (form["shape"] == "items")
        groups = re.compile(form["begins"]).groupindex
        assert groups.keys() <= {"step", "name", "value"}
        assert (form["shape"] == "timers") == ({"name", "value"} <= groups.keys())
