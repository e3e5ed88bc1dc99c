"""Runs that are recorded and shipped by tests, and what came of them."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import rltrace
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.run import Shipper, everything
from rltrace.testing.inside.trace import (
    APART_FILE,
    PACKS,
    RUN_FILE,
    TABLES,
    Store,
    create_run,
    fetch,
    monotonic_ns,
    update_run_json,
)
from tests.run.test_wrap import started

UNTIL_SHIPPED = """
import os, time, rltrace
from rltrace.testing.inside.trace import RltraceError
def until_shipped(rows, condition):
    run, url = os.environ["RLTRACE_RUN"], os.environ["RLTRACE_SHIP"].split(" ", 2)[2]
    os.environ["RLTRACE_CACHE"] = f"{run}-seen"
    asked, found = f"SELECT count(*) FROM spans WHERE {condition}", []
    while found != [(rows,)]:
        time.sleep(0.1)
        try:
            found = rltrace.open_run(url).sql(asked).fetchall()
        except RltraceError:  # the first node has shipped nothing yet
            pass
"""
"""For a job on a node of its own: waits until so many spans are at the run's URL. That a pack is
there says nothing: an agent may ship what it finds before the job records."""

_COMPARED = ("process", "names", "problems", "ends", "clocks", *TABLES)


def recorded(path: Path) -> Recorder:
    """A run with a process that records."""
    create_run(str(path), ["python", "train.py"], {}, "0")
    return Recorder(str(path), role="learner")


def spans(recorder: Recorder, number: int, name: str = "train") -> None:
    """Stores so many spans that have ended."""
    name_id = recorder.name(name)
    for _ in range(number):
        now_ns = monotonic_ns()
        recorder.append("spans", start_ns=now_ns, end_ns=now_ns + 1, name=name_id, stage=4)


def shipper(run_dir: Path, url: str) -> Shipper:
    """One that ships all of a directory."""
    return Shipper(run_dir, "node", url, everything)


class Shipping:
    """A run with a process that records, its URL, and who ships it there."""

    def __init__(self, run: Path, url: str) -> None:
        self.run, self.url, self.recorder = run, url, recorded(run)
        self.store, self.ships = opened(run, url), shipper(run, url)

    def ship(self, number: int, name: str = "train") -> None:
        """Has so many spans stored, and what is there shipped."""
        spans(self.recorder, number, name)
        self.ships.ship(self.store)

    def describe(self, **said: object) -> None:
        """Changes the run's description, here and there."""
        update_run_json(str(self.run), **said)
        self.store.put(RUN_FILE, (self.run / RUN_FILE).read_bytes())

    def assert_there(self) -> None:
        """What is at the URL is the run, and it is well."""
        assert contents(fetch(self.url)) == contents(self.run)
        assert rltrace.open_run(fetch(self.url)).problems == []

    def names(self) -> list[tuple[str, int]]:
        """How many spans by name there are at the URL."""
        return names_of(fetch(self.url))


def names_of(run: Path) -> list[tuple[str, int]]:
    """How many spans a run has by name."""
    found = rltrace.open_run(run).sql("SELECT name, count(*) FROM spans GROUP BY 1 ORDER BY 1")
    return [tuple(row) for row in found.fetchall()]


def opened(run_dir: Path, url: str) -> Store:
    """The store at a URL, with the run's description in it."""
    store = Store(url)
    store.create()
    store.put(RUN_FILE, (run_dir / RUN_FILE).read_bytes())
    return store


def contents(run_dir: Path) -> dict[str, bytes]:
    """What the files of a run hold that are shipped."""
    files = [path for folder in _COMPARED for path in (run_dir / folder).glob("*")]
    return {str(p.relative_to(run_dir)): p.read_bytes() for p in files if p.name != APART_FILE}


def packs(store: Store) -> list[str]:
    """The packs that are there."""
    return sorted(store.sizes(PACKS))


def interrupted(folder: Path, phrase: str, *words: str) -> tuple[int, str]:
    """`rltrace wrap WORDS` in a folder, with Ctrl-C as soon as a line on stderr has the phrase: its
    exit code, and what it said after that line."""
    job = started(folder, *words, stdout=subprocess.DEVNULL)
    assert job.stderr is not None
    for line in job.stderr:
        if phrase in line:
            break
    job.send_signal(signal.SIGINT)
    said = job.stderr.read()
    return job.wait(), said
