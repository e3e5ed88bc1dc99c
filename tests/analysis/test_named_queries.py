"""The queries that come with rltrace: all of them run on anything, and say what they answer."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.analysis.named_queries import named_queries, named_query
from rltrace.testing.inside.trace import RltraceError, Run, compact, create_run
from tests.analysis.asking import ask
from tests.trace.test_run import FIXTURE, old_copy

QUERIES = {query.name: query for query in named_queries()}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("empty") / "run"
    create_run(str(path), ["python", "train.py"], {}, "test")
    return rltrace.open_run(path)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("recorded") / "run"
    shutil.copytree(FIXTURE, path)
    return rltrace.open_run(path)


@pytest.mark.parametrize("name", QUERIES)
def test_of_an_empty_run_a_query_has_no_rows(empty: Run, name: str) -> None:
    assert ask(empty, name) == []


EMPTY_OF_THE_FIXTURE = {
    "captured_samples",
    "gpu_utilisation",
    "groups_without_signal",
    "queue_waits",
    "signal_by_step",
    "verifier_errors",
}
"""What the first recorded run has nothing of. Its three samples were trained on one after the
other: no two are of one group, and only a group has a signal."""


@pytest.mark.parametrize("name", QUERIES)
def test_a_recorded_run_has_an_answer(recorded: Run, name: str) -> None:
    assert bool(ask(recorded, name)) == (name not in EMPTY_OF_THE_FIXTURE)


def test_a_compacted_run_gives_the_same_answers(recorded: Run, tmp_path: Path) -> None:
    compact(rltrace.open_run(old_copy(tmp_path / "run")))
    compacted = rltrace.open_run(tmp_path / "run")
    assert compacted.is_compacted
    for name in QUERIES:
        assert str(ask(compacted, name)) == str(ask(recorded, name)), name


@pytest.mark.parametrize("name", QUERIES)
def test_the_order_of_rows_is_the_same_each_time(synthetic: Any, name: str) -> None:
    run, _ = synthetic(placement="async")

    def known() -> list[list[Any]]:
        """Without sums of floats, which depend on the order in which threads add them up."""
        return [[v for v in row.values() if not isinstance(v, float)] for row in ask(run, name)]

    assert known() == known()


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query_says_what_it_answers_and_has_units(query: Any) -> None:
    assert query.sql.startswith(f"-- {query.explains}\n")
    assert 30 < len(query.explains) <= 102
    assert query.explains.endswith(".")
    assert max(map(len, query.sql.splitlines())) <= 106
    for name in re.findall(r"AS (\w*(?:second|time|wait|latency|stall)\w*)", query.sql):
        assert re.search(r"(_s|_ns|^seconds|^waits|^timeouts)$", name), name


def test_the_page_of_queries_tells_all_of_them_and_what_they_answer() -> None:
    text = (Path(__file__).parents[2] / "docs/queries.md").read_text("utf-8")
    told = dict(re.findall(r"^\| `@(\w+)` \| (.*) \|$", text, re.M))
    assert told == {name: query.explains for name, query in QUERIES.items()}


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("@slow_trajectories", "@slowest_trajectories"),
        ("lag-histogram", "@lag_histogram"),
        ("@slowest", "@slowest_trajectories"),
    ],
)
def test_a_name_that_there_is_not_is_told_those_near_it(asked: str, near: str) -> None:
    with pytest.raises(RltraceError, match=f"did you mean .*{near}") as error:
        named_query(asked)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


def test_of_a_name_like_no_other_nothing_is_guessed() -> None:
    with pytest.raises(RltraceError, match=r"there is no query @\.\./x: `rltrace query --list`"):
        named_query("@../x")
