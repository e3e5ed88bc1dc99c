"""TransferQueue: a sample has one age, whatever is added to it, and none if it is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.adapters import transfer_queue
from rltrace.adapters.transfer_queue import AGE, LYING, TransferQueue
from tests.adapters.conftest import Rows, hooked_as


@hooked_as(TransferQueue, "TransferQueueController")
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
def controller() -> Iterator[Controller]:
    """Once it has cleared everything nothing is kept."""
    yield Controller()
    assert not transfer_queue._put_ns
    assert not transfer_queue._looked_up_ns
    assert not transfer_queue._asked_for


def ages(rows: Rows) -> int:
    found = rows(f"select value from samples where counter = '{AGE}'")
    assert all(value >= 0 for (value,) in found)
    return len(found)


def test_fields_that_are_added_later_make_no_new_sample(rows: Rows, controller: Controller) -> None:
    controller.update_production_status("p", [1, 2])
    for _ in range(3):  # reward, reference, advantage
        controller.kv_retrieve_meta([1, 2])
        controller.kv_retrieve_meta([1, 2], create=True)
        controller.update_production_status("p", [1, 2])
    controller.kv_retrieve_meta([1, 2])  # for its keys
    controller.clear_meta([1, 2], ["p", "p"])
    assert ages(rows) == 2
    lying = rows(f"select value from samples where counter = '{LYING}' order by time_ns")
    assert lying == [(2,), (0,)]


def test_samples_that_nobody_read_before_they_were_cleared_have_no_age(
    rows: Rows, controller: Controller
) -> None:
    controller.update_production_status("p", [1, 2, 3, 4])
    controller.kv_retrieve_meta([1])
    controller.get_metadata([])
    controller.get_metadata([2], mode="force_fetch")
    controller.kv_retrieve_meta([1, 2, 3])
    controller.clear_meta([1, 2, 3], ["p"] * 3)
    controller.clear_partition("p")
    assert ages(rows) == 1


def test_what_was_looked_up_and_goes_with_its_partition_was_read(
    rows: Rows, controller: Controller
) -> None:
    controller.update_production_status("p", [1, 2])
    controller.kv_retrieve_meta([1])
    controller.clear_partition("p")
    assert ages(rows) == 1
    for _ in range(2):  # an index that is used again, and tasks that fetch it one after the other
        controller.update_production_status("p", [1])
        controller.get_metadata([1])
    controller.clear_partition("p")
    assert ages(rows) == 2
