"""A run that is shipped to an S3-compatible server, over a link that goes away and comes back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest

import rltrace
from rltrace.testing.inside.trace import CACHE_VARIABLE, Store
from tests.hooks.conftest import WRAP, clean_environment
from tests.patience import until
from tests.run.shipped import interrupted
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
        until(lambda: "Running on http://127.0.0.1:" in said.read_text(), 60)
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
    link.whole = False
    link.shutdown()
    link.server_close()


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
    until(lambda: packs() > 0, 90)
    (tmp_path / "before-seen").touch()
    link.whole = False
    until((tmp_path / "away").exists, 60)
    asked = link.connections
    until(lambda: link.connections > asked, 60)  # it tries, in vain
    (tmp_path / "away-seen").touch()
    until((tmp_path / "after").exists, 60)  # the job goes on meanwhile
    link.whole = True
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


def test_a_bucket_that_is_not_there_is_said_and_not_made(tmp_path: Path, link: Link) -> None:
    words = ("--ship", "s3://misspelt/runs", "--out", "run", "--", sys.executable, "-c", "1")
    code, said = interrupted(tmp_path, "nothing comes through", *words)
    assert code == 0
    assert "not shipped" in said
    import s3fs

    assert s3fs.S3FileSystem().ls("") == ["traces"]
