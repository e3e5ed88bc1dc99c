"""TransferQueue: a sample has one age, whatever is added to it, and none if it is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.adapters import transfer_queue
from rltrace.adapters.transfer_queue import AGE, LYING, TransferQueue
from rltrace.testing.inside.hooks import Observer, wrap
from rltrace.testing.inside.hooks import recorder as recording
from tests.adapters.trl_shapes import no_problems, rows


class Controller:
    """As much of it as is hooked: samples of partition "p", by their indexes."""

    def update_production_status(self, partition_id: str, global_indexes: list[int]) -> bool:
        return True

    def get_metadata(self, found: list[int], mode: str = "fetch") -> Any:
        return SimpleNamespace(partition_ids=["p"] * len(found), global_indexes=found)

    def kv_retrieve_meta(self, found: list[int], create: bool = False) -> Any:
        return SimpleNamespace(partition_ids=["p"] * len(found), global_indexes=found)

    def clear_meta(self, global_indexes: list[int], partition_ids: list[str]) -> None: ...

    def clear_partition(self, partition_id: str) -> None: ...


@pytest.fixture
def controller() -> Iterator[Any]:
    """A controller whose methods are hooked; once it has cleared everything nothing is kept."""
    hooked = type("Hooked", (Controller,), {})
    for hook in TransferQueue.calls:
        name = hook.target.rpartition(".")[2]
        if hasattr(Controller, name):
            setattr(hooked, name, wrap(getattr(Controller, name), Observer(hook)))
    yield hooked()
    assert not transfer_queue._put_ns
    assert not transfer_queue._looked_up_ns
    assert not transfer_queue._asked_for


def ages(run_path: Path) -> int:
    assert no_problems(run_path)
    found = rows(run_path, f"select value from samples where counter = '{AGE}'")
    assert all(value >= 0 for (value,) in found)
    return len(found)


def clear(controller: Any, found: list[int]) -> None:
    """By keys, which are looked up for it."""
    controller.kv_retrieve_meta(found)
    controller.clear_meta(found, ["p"] * len(found))


def test_fields_that_are_added_later_make_no_new_sample(
    recorder: recording.Recorder, run_path: Path, controller: Any
) -> None:
    controller.update_production_status("p", [1, 2])
    for _ in range(3):  # reward, reference, advantage
        controller.kv_retrieve_meta([1, 2])
        controller.kv_retrieve_meta([1, 2], create=True)
        controller.update_production_status("p", [1, 2])
    clear(controller, [1, 2])
    assert ages(run_path) == 2
    lying = rows(run_path, f"select value from samples where counter = '{LYING}' order by time_ns")
    assert lying == [(2,), (0,)]


def test_tasks_that_fetch_a_sample_one_after_the_other_make_one_age(
    recorder: recording.Recorder, run_path: Path, controller: Any
) -> None:
    controller.update_production_status("p", [1])
    for _ in range(2):
        controller.get_metadata([1])
        controller.update_production_status("p", [1])
    controller.clear_partition("p")
    assert ages(run_path) == 1


def test_samples_that_nobody_read_before_they_were_cleared_have_no_age(
    recorder: recording.Recorder, run_path: Path, controller: Any
) -> None:
    controller.update_production_status("p", [1, 2, 3, 4])
    controller.kv_retrieve_meta([1])
    controller.get_metadata([])
    controller.get_metadata([2], mode="force_fetch")
    clear(controller, [1, 2, 3])
    controller.clear_partition("p")
    assert ages(run_path) == 1


def test_what_was_looked_up_and_goes_with_its_partition_was_read(
    recorder: recording.Recorder, run_path: Path, controller: Any
) -> None:
    controller.update_production_status("p", [1, 2])
    controller.kv_retrieve_meta([1])
    controller.clear_partition("p")
    assert ages(run_path) == 1
    controller.update_production_status("p", [1])  # an index that is used again
    controller.get_metadata([1])
    controller.clear_partition("p")
    assert ages(run_path) == 2
