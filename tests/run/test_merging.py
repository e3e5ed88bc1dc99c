"""Small packs of a run that is shipped become one, and readers of any moment see all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import rltrace
from rltrace.run.shipping.merging import TOGETHER
from rltrace.testing.inside.trace import Store, fetch
from tests.run.shipped import contents, opened, packs, recorded, shipper, spans

pytestmark = pytest.mark.usefixtures("cache")


class Kept(Store):
    """A store that deletes the first few of those that it is asked to, and refuses the others."""

    few = 0

    def delete(self, names: list[str]) -> None:
        super().delete(names[: self.few])
        raise PermissionError("not allowed")


def test_small_packs_are_merged_and_whoever_reads_sees_all(tmp_path: Path, url: str) -> None:
    """One reader comes every ten packs, one at last, one has read the first pack only."""
    run = tmp_path / "run"
    recorder = recorded(run)
    store, ships = opened(run, url), shipper(run, url)
    once = tmp_path / "once"
    for number in range(1, 2 * TOGETHER + 21):
        spans(recorder, 20, f"name {number % 30}")
        recorder.describe(rank=number)
        ships.ship(store)
        ships.merge(store)
        if number == 1:
            shutil.copytree(fetch(url), once)
        if number % 10 == 0:
            assert contents(fetch(url)) == contents(run)
    assert len(packs(store)) == 2 + 20
    assert contents(fetch(url)) == contents(run)
    assert rltrace.open_run(fetch(url)).problems == []
    shutil.rmtree(fetched := fetch(url))
    assert contents(fetch(url)) == contents(run)
    shutil.rmtree(fetched)
    once.rename(fetched)
    assert contents(fetch(url)) == contents(run)
    assert rltrace.open_run(fetch(url)).problems == []


@pytest.mark.parametrize("deleted", [0, 1, TOGETHER // 2, TOGETHER - 1])
def test_a_merge_that_did_not_come_to_its_end_does_no_harm(
    tmp_path: Path, url: str, deleted: int
) -> None:
    """The agent was killed as it deleted, or may not delete: then it merges no more."""
    run = tmp_path / "run"
    recorder = recorded(run)
    store, ships = opened(run, url), shipper(run, url)
    kept = Kept(url)
    kept.few = deleted
    for number in range(1, 2 * TOGETHER + 1):
        spans(recorder, 20)
        ships.ship(store)
        ships.merge(kept)
        if number == TOGETHER // 3:
            fetch(url)
    assert len(packs(store)) == 2 * TOGETHER + 1 - deleted
    assert contents(fetch(url)) == contents(run)
    assert rltrace.open_run(fetch(url)).problems == []
    shutil.rmtree(fetch(url))
    assert contents(fetch(url)) == contents(run)
    assert rltrace.open_run(fetch(url)).problems == []


def test_packs_that_are_merged_while_they_are_read(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    recorder = recorded(run)
    store, ships = opened(run, url), shipper(run, url)
    for _ in range(TOGETHER):
        spans(recorder, 20)
        ships.ship(store)
    read = Store.read

    def late(store: Store, sizes: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        monkeypatch.setattr(Store, "read", read)
        ships.merge(store)
        yield from read(store, sizes)

    monkeypatch.setattr(Store, "read", late)
    assert contents(fetch(url)) == contents(run)
    assert len(packs(store)) == 1
    assert rltrace.open_run(fetch(url)).problems == []


def test_packs_that_are_large_are_left_as_they_are(tmp_path: Path, url: str) -> None:
    run = tmp_path / "run"
    recorder = recorded(run)
    store, ships = opened(run, url), shipper(run, url)
    for _ in range(8):
        spans(recorder, 40_000)  # 2 MB
        ships.ship(store)
        ships.merge(store)
    assert len(packs(store)) == ships.packs
    assert contents(fetch(url)) == contents(run)


def test_a_store_that_is_away_as_packs_are_merged(tmp_path: Path) -> None:
    url, run, there = f"file://{tmp_path}/there/run", tmp_path / "run", tmp_path / "there"
    recorder = recorded(run)
    store, ships = opened(run, url), shipper(run, url)
    for _ in range(TOGETHER):
        spans(recorder, 20)
        ships.ship(store)
    there.rename(tmp_path / "away")
    ships.merge(store)
    (tmp_path / "away").rename(there)
    assert contents(fetch(url)) == contents(run)
    for _ in range(TOGETHER):
        spans(recorder, 20)
        ships.ship(store)
        ships.merge(store)
    assert len(packs(store)) <= TOGETHER + 1
    assert contents(fetch(url)) == contents(run)
    assert rltrace.open_run(fetch(url)).problems == []
