"""Shipping a run to a URL and bringing it from there: nothing lost, nothing invented."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from textwrap import dedent

import pytest
from fsspec.registry import known_implementations

import rltrace
from rltrace.run.shipping.places import check_ship, make_folder
from rltrace.testing.inside.run import by_hand
from rltrace.testing.inside.trace import (
    MOST_PACKED_BYTES,
    PACKS,
    NotAPack,
    Piece,
    RltraceError,
    Store,
    check_url,
    compact,
    delete_segments,
    fetch,
    pack,
    unpack,
    update_run_json,
)
from tests.cli.conftest import invoke
from tests.hooks.conftest import clean_environment
from tests.patience import PATIENCE_S
from tests.run.shipped import contents, opened, packs, recorded, shipper, spans
from tests.trace.test_run import old_copy

pytestmark = pytest.mark.usefixtures("cache")


def names_of(run: Path) -> list[tuple[str, int]]:
    found = rltrace.open_run(run).sql("SELECT name, count(*) FROM spans GROUP BY 1 ORDER BY 1")
    return [tuple(row) for row in found.fetchall()]


def test_what_changed_is_shipped_and_nothing_else(tmp_path: Path, url: str) -> None:
    run = tmp_path / "run"
    recorder = recorded(run)
    spans(recorder, 20_000)
    long = recorder.append("spans", start_ns=1, name=recorder.name("long"), stage=4)
    assert long is not None
    store, ships = opened(run, url), shipper(run, url)
    ships.ship(store)
    assert contents(fetch(url)) == contents(run)
    everything_bytes = ships.shipped_bytes
    ships.ship(store)
    assert len(packs(store)) == 1  # nothing was new

    long.set(end_ns=2)  # in a batch that has been full for long
    spans(recorder, 10, "later")
    recorder.describe(rank=3)
    (run / "ends" / f"{recorder.who}.jsonl").write_text('{"pid": 5, "signal": 9, "asked": true}\n')
    ships.ship(store)
    assert ships.shipped_bytes - everything_bytes < everything_bytes / 4
    here = fetch(url)
    assert contents(here) == contents(run)
    assert names_of(here) == [("later", 10), ("long", 1), ("train", 20_000)]
    before = [path.stat().st_mtime_ns for path in sorted((here / "spans").iterdir())]
    assert fetch(url) == here
    assert before == [path.stat().st_mtime_ns for path in sorted((here / "spans").iterdir())]


def test_files_with_names_that_rltrace_gives_none_cost_no_row(tmp_path: Path) -> None:
    """No reader takes a pack with one: all else in it would be lost with it."""
    run, url = tmp_path / "run", f"file://{tmp_path}/there"
    spans(recorded(run), 100)
    (run / "problems" / "(mine).jsonl").write_text('{"what": "x"}\n')
    (run / "spans" / "a copy.0.arrows").write_bytes(
        next(iter((run / "spans").iterdir())).read_bytes()
    )
    store = opened(run, url)
    shipper(run, url).ship(store)
    assert names_of(fetch(url)) == [("train", 100)]


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
    words = [sys.executable, "-m", "rltrace", "ship", str(run), f"file://{tmp_path}/there"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    shipped = [unpack(path.read_bytes()) for path in tmp_path.glob("there/*/packs/*")]
    assert shipped
    assert not [piece.path for pieces in shipped for piece in pieces if b"mine" in piece.data]

    (run / "shipping").rename(tmp_path / "elsewhere")
    (run / "shipping").symlink_to(tmp_path / "elsewhere")
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "it is a link" in done.stderr
    assert len(done.stderr.splitlines()) == 1


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


def test_a_file_that_nobody_reads_is_not_brought(tmp_path: Path) -> None:
    """A hole of a terabyte costs nothing to make, and would fill the disk here."""
    run = tmp_path / "there" / "run"
    spans(recorded(run), 20)
    for name in ("process/hole.json", "spans/hole.0.arrows"):
        (run / name).touch()
        os.truncate(run / name, 1 << 40)
    here = fetch(f"file://{run}")
    assert names_of(here) == [("train", 20)]
    said = [p["target"] for p in rltrace.open_run(here).problems if "not brought" in p["detail"]]
    assert sorted(said) == ["process/hole.json", "spans/hole.0.arrows"]


def test_what_comes_while_the_store_is_away_is_shipped_when_it_is_back(tmp_path: Path) -> None:
    url, run, there = f"file://{tmp_path}/there/run", tmp_path / "run", tmp_path / "there"
    recorder = recorded(run)
    spans(recorder, 500)
    store, ships = opened(run, url), shipper(run, url)
    ships.ship(store)
    there.rename(tmp_path / "away")
    for _ in range(3):
        spans(recorder, 1000)
        with pytest.raises(FileNotFoundError):
            ships.ship(store)
    assert not there.exists()  # nothing is made where the disk would be mounted
    (tmp_path / "away").rename(there)
    spans(recorder, 500)
    ships.ship(store)
    assert names_of(fetch(url)) == [("train", 4000)]
    assert rltrace.open_run(fetch(url)).problems == []


class Unanswered(Store):
    """A store whose answers get lost."""

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        raise TimeoutError("no answer")


def test_a_pack_that_arrived_though_it_was_given_up_does_no_harm(tmp_path: Path, url: str) -> None:
    run = tmp_path / "run"
    recorder = recorded(run)
    spans(recorder, 500)
    store, ships = opened(run, url), shipper(run, url)
    unanswered = Unanswered(url)
    with pytest.raises(TimeoutError):
        ships.ship(unanswered)
    assert names_of(fetch(url)) == [("train", 500)]  # a reader has seen it
    spans(recorder, 500)
    ships.ship(store)
    assert contents(fetch(url)) == contents(run)
    assert rltrace.open_run(fetch(url)).problems == []


class Full(Store):
    """A store that has no room for the whole of a pack."""

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no space left on device")


def test_half_of_a_pack_for_which_there_was_no_room_is_no_loss(tmp_path: Path, url: str) -> None:
    run = tmp_path / "run"
    recorder = recorded(run)
    spans(recorder, 500)
    store, ships = opened(run, url), shipper(run, url)
    full = Full(url)
    ships.ship(store)
    for _ in range(2):
        spans(recorder, 500)
        with pytest.raises(OSError, match="no space left"):
            ships.ship(full)
        assert names_of(fetch(url)) == [("train", 500)]
    spans(recorder, 500)
    ships.ship(store)
    assert contents(fetch(url)) == contents(run)
    assert names_of(fetch(url)) == [("train", 2000)]
    assert rltrace.open_run(fetch(url)).problems == []


def test_whoever_goes_on_ships_the_rest(tmp_path: Path, url: str) -> None:
    run = tmp_path / "run"
    recorder = recorded(run)
    spans(recorder, 20_000)
    store, first = opened(run, url), shipper(run, url)
    first.ship(store)
    first.save()
    spans(recorder, 100)
    second = shipper(run, url)  # the first was killed
    second.ship(store)
    assert second.shipped_bytes < first.shipped_bytes / 4
    (run / "shipping" / "node.pages").write_text("{")  # what was kept is damaged
    spans(recorder, 100)
    shipper(run, url).ship(store)
    assert contents(fetch(url)) == contents(run)


def test_packs_that_are_missing_or_damaged_are_told(tmp_path: Path) -> None:
    url, run = f"file://{tmp_path}/there/run", tmp_path / "run"
    recorder = recorded(run)
    store, ships = opened(run, url), shipper(run, url)
    for n in range(5):
        spans(recorder, 100, f"part {n}")
        ships.ship(store)
    _, missing, damaged, _, cut = packs(store)
    folder = tmp_path / "there" / "run" / PACKS
    whole = (folder / cut).read_bytes()
    (folder / missing).unlink()
    (folder / damaged).write_bytes((folder / damaged).read_bytes()[:-5])
    (folder / cut).write_bytes(whole[:100])  # as one that is being written
    here = fetch(url)
    assert [p["what"] for p in rltrace.open_run(here).problems] == ["pack-lost"] * 2
    (folder / cut).write_bytes(whole)
    assert ("part 4", 100) in names_of(fetch(url))


WRITER = dedent("""
    import sys
    from rltrace.testing.inside.hooks import Recorder
    from rltrace.testing.inside.trace import monotonic_ns
    recorder = Recorder(sys.argv[1], role="learner")
    sys.stdin.readline()
    n = 0
    while not n or n % 1000 or n < 100_000:
        name = recorder.name(f"span {n // 100}")
        row = recorder.begin(name, 4, tokens=n)
        row.set(items=n, version=n)
        row.end()
        n += 1
    print(n)
""")


def test_no_row_comes_half(tmp_path: Path) -> None:
    """A process stores as fast as it can while the run is shipped and brought."""
    url, run = f"file://{tmp_path}/there/run", tmp_path / "run"
    recorded(run)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(run)],
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    store, ships = opened(run, url), shipper(run, url)
    assert writer.stdin is not None
    writer.stdin.write("\n")
    writer.stdin.flush()
    seen = rounds = 0
    while writer.poll() is None:
        ships.ship(store)
        opened_run = rltrace.open_run(fetch(url))
        rows, half, unnamed = opened_run.sql(
            "SELECT count(*), count(*) FILTER (end_ns IS NOT NULL AND (tokens IS NULL OR version IS"
            " NULL OR items <> tokens)), count(*) FILTER (name = '?' OR name IS NULL) FROM spans"
        ).fetchall()[0]
        assert (half, unnamed) == (0, 0)
        assert rows >= seen
        seen, rounds = rows, rounds + 1
    ships.ship(store, everything=True)
    assert writer.stdout is not None
    assert rltrace.open_run(fetch(url)).rows("spans") == int(writer.stdout.read())
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


def test_what_is_nested_too_deep_is_no_reason_to_fail(tmp_path: Path, url: str) -> None:
    deep = b"[" * 100_000
    index = zlib.compress(len(deep).to_bytes(8, "little") + deep)
    hostile = b"RLTPACK1" + hashlib.blake2b(index, digest_size=16).digest() + index
    with pytest.raises(NotAPack, match="deep"):
        unpack(hostile)
    run = tmp_path / "run"
    spans(recorded(run), 5)
    store = opened(run, url)
    shipper(run, url).ship(store)
    store.put("packs/other.1.00000001-00000000", hostile)
    store.put("nodes/other.json", deep)
    assert names_of(fetch(url)) == [("train", 5)]
    store.put("run.json", deep)
    with pytest.raises(RltraceError, match="is not a run's description"):
        fetch(url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("runs", "no URL"),
        ("s3://key:secret@bucket/runs", "credentials"),
        ("https://me:secret@host/runs", "credentials"),
        ("https://secret@host/runs", "credentials"),
        ("memory://me:secret@x", "credentials"),
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
    assert str(refused.value).endswith("pip install 'rltrace-toolkit[ship]' no-such-package")
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("folder", ["/proc/runs", "/proc", "{here}/a-file", "{here}/a-file/runs"])
def test_wrap_refuses_a_folder_that_can_never_be_written_to(tmp_path: Path, folder: str) -> None:
    (tmp_path / "a-file").touch()
    url = f"file://{folder.format(here=tmp_path)}"
    done = invoke("wrap", "--out", tmp_path / "run", "--ship", url, "--", "true")
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert line.startswith(f"rltrace: {url} cannot be shipped to (")
    assert "give a folder that can be written to" in line
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


def test_by_hand(tmp_path: Path, url: str) -> None:
    run = tmp_path / "run"
    recorder = recorded(run)
    spans(recorder, 1000)
    with pytest.raises(RltraceError, match="was not shipped"):
        by_hand.ship(run, None)
    if url.startswith("memory"):
        with pytest.raises(RltraceError, match="ends with its process"):
            by_hand.ship(run, url)
        return
    runs_url = url.rpartition("/")[0]
    done = by_hand.ship(run, runs_url)
    assert done.packs == 1
    assert contents(fetch(done.url)) == contents(run)
    assert by_hand.ship(run, None).packs == 0
    spans(recorder, 10)
    update_run_json(str(run), end_real_ns=1)
    again = by_hand.ship(run, runs_url)
    assert (again.url, again.packs) == (done.url, 1)
    assert contents(fetch(done.url)) == contents(run)
    with pytest.raises(RltraceError, match="is no run, but a folder that holds one: give "):
        fetch(runs_url)
    with pytest.raises(RltraceError, match="holds no run"):
        fetch(f"{runs_url}/nothing")


def test_a_run_whose_plain_files_lie_at_a_url(tmp_path: Path) -> None:
    run = tmp_path / "plain" / "run"
    recorder = recorded(run)
    spans(recorder, 1000)
    here = fetch(f"file://{run}")
    assert contents(here) == contents(run)
    assert json.loads((here / "run.json").read_text())["id"] == "run"
    spans(recorder, 20_000)
    assert contents(fetch(f"file://{run}")) == contents(run)
