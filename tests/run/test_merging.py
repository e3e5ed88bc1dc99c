"""Small packs of a run that is shipped become one, and readers of any moment see all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rltrace.run.shipping.shipper import TOGETHER
from rltrace.testing.inside.trace import Store, fetch
from tests.run.shipped import Shipping, contents, packs


class Kept(Store):
    """A store that deletes the first few of those that it is asked to, and refuses the others."""

    few = 0

    def delete(self, names: list[str]) -> None:
        super().delete(names[: self.few])
        raise PermissionError("not allowed")


def test_small_packs_are_merged_and_whoever_reads_sees_all(
    tmp_path: Path, shipping: Shipping
) -> None:
    """One reader comes every ten packs, one at last, one has read the first pack only."""
    once = tmp_path / "once"
    for number in range(1, 2 * TOGETHER + 21):
        shipping.recorder.describe(rank=number)
        shipping.ship(20, f"name {number % 30}")
        shipping.ships.merge(shipping.store)
        if number == 1:
            shutil.copytree(fetch(shipping.url), once)
        if number % 10 == 0:
            assert contents(fetch(shipping.url)) == contents(shipping.run)
    assert len(packs(shipping.store)) == 2 + 20
    shipping.assert_there()
    shutil.rmtree(fetched := fetch(shipping.url))
    shipping.assert_there()
    shutil.rmtree(fetched)
    once.rename(fetched)
    shipping.assert_there()


@pytest.mark.parametrize("deleted", [0, 1, TOGETHER // 2, TOGETHER - 1])
def test_a_merge_that_did_not_come_to_its_end_does_no_harm(
    shipping: Shipping, deleted: int
) -> None:
    """The agent was killed as it deleted, or may not delete: then it merges no more."""
    kept = Kept(shipping.url)
    kept.few = deleted
    for number in range(1, 2 * TOGETHER + 1):
        shipping.ship(20)
        shipping.ships.merge(kept)
        if number == TOGETHER // 3:
            fetch(shipping.url)
    assert len(packs(shipping.store)) == 2 * TOGETHER + 1 - deleted
    shipping.assert_there()
    shutil.rmtree(fetch(shipping.url))
    shipping.assert_there()


def test_packs_that_are_merged_while_they_are_read(
    shipping: Shipping, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(TOGETHER):
        shipping.ship(20)
    read = Store.read

    def late(store: Store, sizes: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        monkeypatch.setattr(Store, "read", read)
        shipping.ships.merge(store)
        yield from read(store, sizes)

    monkeypatch.setattr(Store, "read", late)
    shipping.assert_there()
    assert len(packs(shipping.store)) == 1


def test_packs_that_are_large_are_left_as_they_are(shipping: Shipping) -> None:
    for _ in range(8):
        shipping.ship(40_000)  # 2 MB
        shipping.ships.merge(shipping.store)
    assert len(packs(shipping.store)) == shipping.ships.packs
    shipping.assert_there()


def test_a_store_that_is_away_as_packs_are_merged(tmp_path: Path, to_disk: Shipping) -> None:
    for _ in range(TOGETHER):
        to_disk.ship(20)
    (tmp_path / "there").rename(tmp_path / "away")
    to_disk.ships.merge(to_disk.store)
    (tmp_path / "away").rename(tmp_path / "there")
    to_disk.assert_there()
    for _ in range(TOGETHER):
        to_disk.ship(20)
        to_disk.ships.merge(to_disk.store)
    assert len(packs(to_disk.store)) <= TOGETHER + 1
    to_disk.assert_there()
