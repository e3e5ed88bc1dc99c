"""Spans that follow each other without a gap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.hooks.phases import Phases
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.hooks import recorder as recording

NAMES = ("set up", "send", "the others")


def recorded(run_path: Path) -> list[Any]:
    names = ", ".join(f"'{name}'" for name in NAMES)
    query = f"SELECT name, start_ns, end_ns FROM spans WHERE name IN ({names}) ORDER BY start_ns"
    return rltrace.open_run(run_path).sql(query).fetchall()


def cut_short() -> None:
    """An exception leaves the second phase."""
    with Phases() as phases:
        phases.begin("sync", "set up")
        phases.begin("sync", "send")
        raise KeyError("mine")


def test_a_phase_begins_at_the_reading_at_which_the_one_before_ends(
    recorder: Recorder, run_path: Path
) -> None:
    for _ in range(100):
        with Phases() as phases:
            for name in NAMES:
                phases.begin("sync", name)
                with rltrace.span("wait", "inside"):
                    sorted(range(1000))
    found = recorded(run_path)
    assert [name for name, *_ in found] == [*NAMES] * 100
    for first in range(0, len(found), len(NAMES)):
        (_, began, to), (_, then, on), (_, last, ended) = found[first : first + len(NAMES)]
        assert began < to == then < on == last < ended


def test_what_a_phase_is_called_and_carries(recorder: Recorder, run_path: Path) -> None:
    with Phases() as phases:
        phases.begin("wait", "a slot")
        phases.begin("sync", "load", "load", version=3, bytes=40).set(items=2)
    columns = "stage, name, phase, version, bytes, items"
    found = rltrace.open_run(run_path).sql(f"SELECT {columns} FROM spans ORDER BY start_ns")
    assert found.fetchall() == [
        ("wait", "a slot", None, None, None, None),
        ("sync", "load", "load", 3, 40, 2),
    ]


def test_the_first_phase_reaches_back_to_where_the_whole_began(
    recorder: Recorder, run_path: Path
) -> None:
    with rltrace.span("sync", "whole") as whole, Phases(whole.start_ns) as phases:
        for name in NAMES:
            phases.begin("sync", name)
    query = "SELECT start_ns FROM spans WHERE name = 'whole'"
    ((began_ns,),) = rltrace.open_run(run_path).sql(query).fetchall()
    first, second, third = recorded(run_path)
    assert first[1] == began_ns
    assert first[2] == second[1]
    assert second[2] == third[1]


def test_an_exception_ends_the_phase_that_it_leaves_and_passes(
    recorder: Recorder, run_path: Path
) -> None:
    with pytest.raises(KeyError, match="mine"):
        cut_short()
    (_, _, to), (_, then, ended) = recorded(run_path)
    assert to == then < ended


def test_without_a_run_nothing_happens() -> None:
    with Phases() as phases:
        phases.begin("sync", "set up").set(bytes=3)
        phases.begin("sync", "send")
    with pytest.raises(KeyError, match="mine"):
        cut_short()
    with Phases():
        pass


def test_a_run_that_stops_between_two_phases_has_the_first(
    recorder: Recorder, run_path: Path
) -> None:
    with Phases() as phases:
        phases.begin("sync", "set up")
        recording.stop()
        phases.begin("sync", "send")
    ((name, began, ended),) = recorded(run_path)
    assert name == "set up"
    assert began < ended
