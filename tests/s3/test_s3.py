"""A run that is shipped to an S3-compatible server, over a link that goes away and comes back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest

import rltrace
from rltrace.testing.inside.run import TOGETHER
from rltrace.testing.inside.trace import CACHE_VARIABLE, Store, fetch, read_run_json
from tests.hooks.conftest import WRAP, clean_environment
from tests.run.shipped import contents, interrupted, opened, recorded, shipper, spans
from tests.run.shipped import packs as shipped_packs
from tests.run.test_agent import alive
from tests.run.test_wrap import until
from tests.s3.link import Link

SECRET = "a-secret-of-nobody-else"
BUCKET = "s3://traces"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server."""
    said = tmp_path_factory.mktemp("server") / "said"
    with open(said, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            env=clean_environment(PYTHONUNBUFFERED="1"),
            stdout=file,
            stderr=file,
        )
    try:
        assert until(lambda: "Running on http://127.0.0.1:" in said.read_text(), 60)
        yield int(said.read_text().partition("Running on http://127.0.0.1:")[2].split()[0])
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def link(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """What lies between this machine and the server."""
    link = Link(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{link.port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    with suppress(FileExistsError):
        s3fs.S3FileSystem().mkdir("traces")
    yield link
    link.close()


JOB = dedent("""
    import sys, time, rltrace
    from pathlib import Path
    for phase in ("before", "away", "after"):
        for n in range(1000):
            with rltrace.span("train", name=phase, tokens=n):
                pass
        Path(sys.argv[1], phase).touch()
        while not Path(sys.argv[1], f"{phase}-seen").exists():
            time.sleep(0.1)
""")


def packs() -> int:
    store = Store(f"{BUCKET}/runs")
    return sum(len(store.sizes(f"{run}/packs")) for run in store.folders())


def test_nothing_is_lost_when_the_network_goes_away(tmp_path: Path, link: Link) -> None:
    (tmp_path / "job.py").write_text(JOB)
    job = subprocess.Popen(
        [*WRAP, "--ship", f"{BUCKET}/runs", "--out", "run", "--",
         sys.executable, "job.py", str(tmp_path)],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert until(lambda: packs() > 0, 90)
    (tmp_path / "before-seen").touch()
    link.cut()
    assert until((tmp_path / "away").exists, 60)
    asked = link.connections
    assert until(lambda: link.connections > asked, 60)  # it tries, in vain
    (tmp_path / "away-seen").touch()
    assert until((tmp_path / "after").exists, 60)  # the job goes on meanwhile
    link.mend()
    (tmp_path / "after-seen").touch()
    _, said = job.communicate(timeout=150)
    assert job.returncode == 0
    assert "not shipped" not in said, said
    url = said.partition(" and ")[2].partition(";")[0]
    run = rltrace.open_run(url)
    found = run.sql("SELECT name, count(*) FROM spans GROUP BY 1 ORDER BY 1").fetchall()
    assert found == [("after", 1000), ("away", 1000), ("before", 1000)]
    assert run.meta["exit_code"] == 0
    assert [p for p in run.problems if p["what"] != "no-gpu"] == []
    for folder in ("run", "cache"):
        for file in (tmp_path / folder).rglob("*"):
            assert not file.is_file() or SECRET.encode() not in file.read_bytes()


WAITS = "import sys, time, pathlib\nwhile not pathlib.Path('seen').exists(): time.sleep(0.1)"


def test_packs_are_five_seconds_apart(tmp_path: Path, link: Link) -> None:
    """docs/nodes.md says how many writes a young run makes; a slow machine makes fewer."""
    began = time.monotonic()
    job = subprocess.Popen(
        [*WRAP, "--ship", f"{BUCKET}/runs", "--out", "run", "--", sys.executable, "-c", WAITS],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    before = packs()
    assert until(lambda: packs() >= before + 4, 120)
    assert packs() - before <= (time.monotonic() - began) / 5 + 1
    (tmp_path / "seen").touch()
    assert job.wait(150) == 0


def test_a_bucket_that_is_not_there_is_said_and_not_made(tmp_path: Path, link: Link) -> None:
    words = ("--ship", "s3://misspelt/runs", "--out", "run", "--", sys.executable, "-c", "1")
    code, said = interrupted(tmp_path, "nothing comes through", *words)
    assert code == 0
    assert "not shipped" in said
    import s3fs

    assert s3fs.S3FileSystem().ls("") == ["traces"]


def test_a_network_that_is_away_for_the_whole_job(tmp_path: Path, link: Link) -> None:
    """The agent goes on when `wrap` has ended, and ships all once the network is there."""
    link.cut()
    (tmp_path / "job.py").write_text(
        "import rltrace\nfor n in range(3000):\n    with rltrace.span('train', step=n): pass\n"
    )
    words = ("--ship", f"{BUCKET}/away", "--out", "run", "--", sys.executable, "job.py")
    code, said = interrupted(tmp_path, "nothing comes through", *words)
    assert code == 0
    assert "this node is not shipped" in said
    (agent,) = (tmp_path / "run" / "nodes").glob("*.json")
    pid = json.loads(agent.read_text())["pid"]
    assert alive(pid)
    link.mend()
    assert until(lambda: not alive(pid), 90)
    run = rltrace.open_run(read_run_json(str(tmp_path / "run"))["shipped_to"])
    found = run.sql("SELECT count(*), count(DISTINCT step), max(step) FROM spans").fetchall()
    assert found == [(3000, 3000, 2999)]
    assert [p for p in run.problems if p["what"] != "no-gpu"] == []


def test_small_packs_become_one(tmp_path: Path, link: Link) -> None:
    """The network goes away just then, and comes back."""
    url, run = f"{BUCKET}/merged/run", tmp_path / "run"
    recorder = recorded(run)
    store, ships = opened(run, url), shipper(run, url)
    for _ in range(TOGETHER):
        spans(recorder, 10)
        ships.ship(store)
    assert len(shipped_packs(store)) == TOGETHER
    link.cut()
    with pytest.raises(OSError):  # noqa: PT011 (whatever the client says)
        ships.merge(store)
    link.mend()
    assert contents(fetch(url)) == contents(run)
    ships.merge(store)
    assert len(shipped_packs(store)) == 1
    spans(recorder, 10)
    ships.ship(store)
    assert contents(fetch(url)) == contents(run)
    shutil.rmtree(fetch(url))
    assert contents(fetch(url)) == contents(run)
    assert rltrace.open_run(fetch(url)).problems == []
