"""Shipping a run to a URL and bringing it from there: nothing lost, nothing invented."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import threading
import zlib
from pathlib import Path

import pytest
from fsspec.registry import known_implementations

import rltrace
from rltrace.run.shipping.destinations import check_ship, make_folder
from rltrace.testing.inside.run import ship_command as by_hand
from rltrace.testing.inside.run import shipping_state as kept
from rltrace.testing.inside.trace import (
    MOST_PACKED_BYTES,
    PACKS,
    NotAPack,
    Piece,
    RltraceError,
    Store,
    check_url,
    delete_segments,
    fetch,
    node_id,
    pack,
    unpack,
    update_run_json,
)
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.cli.conftest import invoke
from tests.hooks.conftest import untraced
from tests.run.shipped import Shipping, contents, names_of, packs, recorded, shipper, spans
from tests.trace.test_run import old_copy

pytestmark = pytest.mark.usefixtures("cache")


def test_what_changed_is_shipped_and_nothing_else(shipping: Shipping) -> None:
    run, recorder, ships = shipping.run, shipping.recorder, shipping.ships
    long = recorder.append("spans", start_ns=1, name=recorder.name("long"), stage=4)
    assert long is not None
    shipping.ship(20_000)
    shipping.assert_there()
    everything_bytes = ships.shipped_bytes
    ships.ship(shipping.store)
    assert len(packs(shipping.store)) == 1  # nothing was new

    long.set(end_ns=2)  # in a batch that has been full for long
    recorder.describe(rank=3)
    (run / "ends" / f"{recorder.who}.jsonl").write_text('{"pid": 5, "signal": 9, "asked": true}\n')
    shipping.ship(10, "later")
    assert ships.shipped_bytes - everything_bytes < everything_bytes / 4
    here = fetch(shipping.url)
    shipping.assert_there()
    assert names_of(here) == [("later", 10), ("long", 1), ("train", 20_000)]
    before = [path.stat().st_mtime_ns for path in sorted((here / "spans").iterdir())]
    assert fetch(shipping.url) == here
    assert before == [path.stat().st_mtime_ns for path in sorted((here / "spans").iterdir())]


def test_files_with_names_that_rltrace_gives_none_cost_no_row(to_disk: Shipping) -> None:
    """No reader takes a pack with one: all else in it would be lost with it."""
    run = to_disk.run
    spans(to_disk.recorder, 100)
    (run / "problems" / "(mine).jsonl").write_text('{"what": "x"}\n')
    (segment,) = (run / "spans").iterdir()
    (run / "spans" / "a copy.0.arrows").write_bytes(segment.read_bytes())
    to_disk.ships.ship(to_disk.store)
    assert to_disk.names() == [("train", 100)]


def test_of_a_run_of_somebody_else_s_only_its_own_files_are_shipped(tmp_path: Path) -> None:
    """A link may lead to anything that this user can read, and a pipe is waited for."""
    run, outside = tmp_path / "run", tmp_path / "outside"
    recorded(run)
    outside.mkdir()
    (outside / "mine.json").write_text('{"mine": 1}')
    (run / "ends").rmdir()
    (run / "ends").symlink_to(outside)
    (run / "process" / "mine.json").symlink_to(outside / "mine.json")
    (run / "shipping").mkdir()
    for name in ("nodes/x.json", "shipping/x.pages", "process/y.json", "fetched.json"):
        os.mkfifo(run / name)
    words = (sys.executable, "-m", "rltrace", "ship", str(run), f"file://{tmp_path}/there")
    done = untraced(*words)
    assert done.returncode == 0, done.stderr
    shipped = [unpack(path.read_bytes()) for path in tmp_path.glob("there/*/packs/*")]
    assert shipped
    assert not [piece.path for pieces in shipped for piece in pieces if b'"mine"' in piece.data]

    (run / "shipping").rename(tmp_path / "elsewhere")
    (run / "shipping").symlink_to(tmp_path / "elsewhere")
    (line,) = untraced(*words).stderr.splitlines()
    assert "link" in line


def test_a_run_that_is_all_parquet_is_read_where_its_folder_was_copied_to(
    tmp_path: Path, url: str
) -> None:
    run = old_copy(tmp_path / "run")
    before = names_of(run)
    compact(rltrace.open_run(run))
    delete_segments(run)
    store = Store(url)
    store.create()
    for path in (path for path in run.rglob("*") if path.is_file()):
        store._files.makedirs(store._path(str(path.relative_to(run).parent)), exist_ok=True)
        store.put(str(path.relative_to(run)), path.read_bytes())
    store._files.makedirs(store._path("parquet/other"), exist_ok=True)
    store.put("parquet/other/x.parquet", b"no table of a run")
    here = fetch(url)
    assert names_of(here) == before
    assert not (here / "parquet" / "other").exists()


def test_a_run_whose_plain_files_lie_at_a_url(tmp_path: Path) -> None:
    """A file that nobody reads is not brought: a hole of a terabyte costs nothing to make, and
    would fill the disk here."""
    run = tmp_path / "plain" / "run"
    recorder = recorded(run)
    for number in (1000, 20_000):
        spans(recorder, number)
        assert contents(fetch(f"file://{run}")) == contents(run)
    holes = ["process/hole.json", "spans/hole.0.arrows"]
    for name in holes:
        (run / name).touch()
        os.truncate(run / name, 1 << 40)
    here = fetch(f"file://{run}")
    assert names_of(here) == [("train", 21_000)]
    said = [p["target"] for p in rltrace.open_run(here).problems if "not brought" in p["detail"]]
    assert sorted(said) == holes


def test_what_comes_while_the_store_is_away_is_shipped_when_it_is_back(
    tmp_path: Path, to_disk: Shipping
) -> None:
    to_disk.ship(500)
    (tmp_path / "there").rename(tmp_path / "away")
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            to_disk.ship(1000)
    assert not (tmp_path / "there").exists()  # nothing is made where the disk would be mounted
    (tmp_path / "away").rename(tmp_path / "there")
    to_disk.ship(500)
    to_disk.assert_there()
    assert to_disk.names() == [("train", 4000)]


class Unanswered(Store):
    """A store whose answers get lost."""

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        raise TimeoutError("no answer")


class Full(Store):
    """A store that has no room for the whole of a pack."""

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no space left on device")


@pytest.mark.parametrize(("broken", "arrive"), [(Unanswered, 3), (Full, 1)])
def test_a_pack_that_was_given_up_does_no_harm_if_it_arrived_and_is_no_loss_if_a_half_did(
    shipping: Shipping, broken: type[Store], arrive: int
) -> None:
    shipping.ship(500)
    store = broken(shipping.url)
    for _ in range(2):
        spans(shipping.recorder, 500)
        with pytest.raises(OSError, match=r"no (answer|space)"):
            shipping.ships.ship(store)
    assert shipping.names() == [("train", 500 * arrive)]  # a reader has seen it
    shipping.ship(500)
    shipping.assert_there()
    assert shipping.names() == [("train", 2000)]


def test_whoever_goes_on_ships_the_rest(shipping: Shipping) -> None:
    shipping.ship(20_000)
    first = shipping.ships
    first.save()
    second = shipping.ships = shipper(shipping.run, shipping.url)  # the first was killed
    shipping.ship(100)
    assert second.shipped_bytes < first.shipped_bytes / 4
    (shipping.run / "shipping" / "node.pages").write_text("{")  # what was kept is damaged
    shipping.ships = shipper(shipping.run, shipping.url)
    shipping.ship(100)
    shipping.assert_there()


def test_packs_that_are_missing_or_damaged_are_told(tmp_path: Path, to_disk: Shipping) -> None:
    for n in range(5):
        to_disk.ship(100, f"part {n}")
    _, missing, damaged, _, cut = packs(to_disk.store)
    folder = tmp_path / "there" / "run" / PACKS
    whole = (folder / cut).read_bytes()
    (folder / missing).unlink()
    (folder / damaged).write_bytes((folder / damaged).read_bytes()[:-5])
    (folder / cut).write_bytes(whole[:100])  # as one that is being written
    here = fetch(to_disk.url)
    assert [p["what"] for p in rltrace.open_run(here).problems] == ["pack-lost"] * 2
    (folder / cut).write_bytes(whole)
    assert ("part 4", 100) in to_disk.names()


def test_no_row_comes_half(to_disk: Shipping) -> None:
    """A thread stores as fast as it can while the run is shipped and brought."""
    recorder, number = to_disk.recorder, 150_000

    def store() -> None:
        for n in range(number):
            row = recorder.begin(recorder.name(f"span {n // 100}"), 4, tokens=n)
            row.set(items=n, version=n)
            row.end()

    writer = threading.Thread(target=store)
    writer.start()
    seen = rounds = 0
    while writer.is_alive():
        to_disk.ships.ship(to_disk.store)
        found = rltrace.open_run(fetch(to_disk.url)).sql(
            "SELECT count(*), count(*) FILTER (end_ns IS NOT NULL AND (tokens IS NULL OR version IS"
            " NULL OR items <> tokens)), count(*) FILTER (name = '?' OR name IS NULL) FROM spans"
        )
        rows, half, unnamed = found.fetchall()[0]
        assert (half, unnamed) == (0, 0)
        assert rows >= seen
        seen, rounds = rows, rounds + 1
    to_disk.ships.ship(to_disk.store, everything=True)
    assert rltrace.open_run(fetch(to_disk.url)).rows("spans") == number
    assert rounds > 1


@pytest.mark.parametrize(
    "path",
    [
        *("../../etc/passwd", "spans/../../x.arrows", "/etc/x", "run.json", "spans", "odd/x.json"),
        *("process/..", "names/.", "names/.x", "names/a\0b", "ENDS/x"),
    ],
)
def test_a_pack_writes_nothing_but_files_of_a_run(path: str) -> None:
    with pytest.raises(NotAPack):
        unpack(pack([Piece(path, 0, b"x")]))


def test_a_pack_that_is_none_is_refused() -> None:
    good = pack([Piece("spans/x.0.arrows", 8, b"rows")])
    assert unpack(good) == [Piece("spans/x.0.arrows", 8, b"rows")]
    for bad in (b"", good[:20], good[:-1], good + b"x", b"x" + good[1:]):
        with pytest.raises(NotAPack):
            unpack(bad)
    huge = pack([Piece("spans/x.0.arrows", 0, bytes(MOST_PACKED_BYTES + 1))])
    assert len(huge) < 1 << 20
    with pytest.raises(NotAPack, match="longer"):
        unpack(huge)
    with pytest.raises(NotAPack):
        unpack(pack([Piece("spans/x.0.arrows", 1 << 40, b"x")]))


def test_what_is_nested_too_deep_is_no_reason_to_fail(shipping: Shipping) -> None:
    deep = b"[" * 100_000
    index = zlib.compress(len(deep).to_bytes(8, "little") + deep)
    hostile = b"RLTPACK1" + hashlib.blake2b(index, digest_size=16).digest() + index
    with pytest.raises(NotAPack, match="deep"):
        unpack(hostile)
    shipping.ship(5)
    shipping.store.put("packs/other.1.00000001-00000000", hostile)
    shipping.store.put("nodes/other.json", deep)
    assert shipping.names() == [("train", 5)]
    shipping.store.put("run.json", deep)
    with pytest.raises(RltraceError, match="is not a run's description"):
        fetch(shipping.url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("runs", "no URL"),
        ("s3://key:secret@bucket/runs", "credentials"),
        ("https://secret@host/runs", "credentials"),
        ("s3://[secret", "no URL"),
        ("nosuch://bucket/runs", "no filesystem is known"),
        ("dropbox://runs", "dropbox"),
        ("http://host/runs", "http:// is for reading"),
        ("HTTPS://host/runs", "https:// is for reading"),
        ("zip://runs.zip", "zip:// is for reading"),
        ("dir://x", "dir:// is no place of its own"),
    ],
)
def test_a_url_that_cannot_be_shipped_to_is_refused(url: str, says: str) -> None:
    with pytest.raises(RltraceError, match=says) as refused:
        check_ship(url)
    assert refused.value.exit_code == 2
    assert "secret" not in str(refused.value)


def test_a_url_whose_filesystem_of_fsspec_needs_a_package_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = {"class": "fsspec.none.Such", "err": 'requires "click" and "no-such-package"'}
    monkeypatch.setitem(known_implementations, "ours", ours)
    with pytest.raises(RltraceError, match="ours:// needs no-such-package") as refused:
        check_url("ours://folder/run")
    assert str(refused.value).endswith("'rltrace-toolkit[ship]' no-such-package")
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("folder", ["/proc/runs", "/proc", "{here}/a-file", "{here}/a-file/runs"])
def test_wrap_refuses_a_folder_that_can_never_be_written_to(tmp_path: Path, folder: str) -> None:
    (tmp_path / "a-file").touch()
    url = f"file://{folder.format(here=tmp_path)}"
    done = invoke("wrap", "--out", tmp_path / "run", "--ship", url, "--", "true")
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert url in line
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EIO, errno.ESTALE])
def test_a_disk_that_is_away_or_full_for_the_moment_is_shipped_to_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(why, os.strerror(why), str(tmp_path))

    monkeypatch.setattr(os, "makedirs", fails)
    make_folder(f"file://{tmp_path}/runs")


def test_a_folder_is_made_once_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(f"file://{tmp_path}/a/runs")
    assert list((tmp_path / "a").rglob("*")) == [tmp_path / "a/runs"]


def test_by_hand(tmp_path: Path) -> None:
    run, runs_url, there = tmp_path / "run", f"file://{tmp_path}/there", tmp_path / "there"
    recorder = recorded(run)
    spans(recorder, 1000)
    for nowhere, why in ((None, "was not shipped"), ("memory://x", "ends with its process")):
        with pytest.raises(RltraceError, match=why):
            by_hand.ship(run, nowhere)
    done = by_hand.ship(run, runs_url)
    assert (done.url.startswith(f"{runs_url}/run-"), done.packs) == (True, 1)
    assert contents(fetch(done.url)) == contents(run)
    assert by_hand.ship(run, None).packs == 0
    spans(recorder, 10)
    update_run_json(str(run), end_real_ns=1, exit_code=0)
    with kept.held(run, node_id()), pytest.raises(RltraceError, match="by the agent"):
        by_hand.ship(run, None)
    assert invoke("ship", run).exit_code == 2  # anybody may have written where to
    there.rename(tmp_path / "away")
    assert invoke("ship", run, "--yes").exit_code == 4
    assert not there.exists()
    (tmp_path / "away").rename(there)
    assert invoke("ship", run, "--yes").exit_code == 0
    assert contents(fetch(done.url)) == contents(run)
    again = by_hand.ship(run, runs_url)
    assert (again.url, again.packs) == (done.url, 0)
    listed = json.loads(invoke("ls", runs_url, "--json").stdout)
    assert [(entry["path"], entry["exit_code"]) for entry in listed] == [(done.url, 0)]
    answer = invoke("query", "SELECT count(*) AS n FROM spans", done.url, "--json")
    assert json.loads(answer.stdout) == [{"n": 1010}]
    with pytest.raises(RltraceError, match="holds no run"):
        fetch(f"{runs_url}/nothing")
