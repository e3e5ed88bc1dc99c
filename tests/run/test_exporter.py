"""The exporter beside a run: what it answers, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rltrace.run import exporter as exporting
from rltrace.run.exporter import _JUDGE, Exporter, serve
from rltrace.testing.handmade_runs import at, process, run_of
from rltrace.testing.inside.report import loopback
from rltrace.testing.inside.trace import (
    UNREADABLE,
    WRONG_USAGE,
    RltraceError,
    Stage,
    update_run_json,
)
from tests.cli.conftest import invoke
from tests.hooks.conftest import untraced
from tests.patience import PATIENCE_S


@pytest.fixture
def run(tmp_path: Path) -> Path:
    steps = [(("step", n), n, n + 1) for n in range(3)]
    run_of(tmp_path, process("learner", *steps, (Stage.TRAIN, 0, 1)), end_real_ns=at(4))
    return tmp_path / "run"


def get(url: str) -> tuple[int, str, str]:
    """Status, type and text of an answer."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, "", error.read().decode()


def served(
    path: Path,
    ask: Callable[[str], Any],
    ends_by: int | None = signal.SIGINT,
    *,
    host: str = "127.0.0.1",
    until_end: bool = False,
) -> list[Any]:
    """What `ask` found while the run was served, which is ended by a signal then, if by any."""
    found: list[Any] = []

    def asks(url: str) -> None:
        try:
            found.append(ask(url))
        finally:
            if ends_by is not None:
                os.kill(os.getpid(), ends_by)

    def serving(url: str) -> None:
        threading.Thread(target=asks, args=(url,)).start()

    serve(Exporter(path), host, 0, until_end, serving)
    return found


@pytest.mark.parametrize("ends_by", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end(run: Path, ends_by: int) -> None:
    before = signal.getsignal(ends_by)

    def ask(url: str) -> list[tuple[int, str, str]]:
        return [get(url), get(f"{url}?x=1"), get(url.removesuffix("/metrics")), get(f"{url}x")]

    (answers,) = served(run, ask, ends_by)
    metrics, again, index, nothing = answers
    assert metrics[:2] == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'rltrace_steps_total{run="run"} 3\n' in metrics[2]
    assert again == metrics
    assert index[2] == "rltrace, run run: /metrics\n"
    assert nothing[0] == 404
    assert signal.getsignal(ends_by) == before


def asked_by(name: str | None, url: str) -> int:
    """Asks for the metrics with such a `Host`, or with none; the status of the answer."""
    where = urlsplit(url)
    connection = HTTPConnection("127.0.0.1", where.port, timeout=PATIENCE_S)
    connection.putrequest("GET", where.path, skip_host=True)
    if name is not None:
        connection.putheader("Host", name.format(port=where.port))
    connection.endheaders()
    return connection.getresponse().status


def test_a_page_that_came_here_by_another_name_is_refused(run: Path) -> None:
    ours = ("127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "[::1]:{port}")
    others = ("evil.example:{port}", "127.0.0.1.evil.example", "localhost@evil.example", "[::1")
    names = [*ours, *others, "", None]
    (found,) = served(run, lambda url: [asked_by(name, url) for name in names])
    assert found == [200] * len(ours) + [403] * (len(others) + 2)


def test_who_listens_for_everybody_answers_to_any_name(run: Path) -> None:
    assert served(run, lambda url: asked_by("trainer-0.example", url), host="0.0.0.0") == [200]


def test_slow_clients_take_the_place_of_nobody_and_of_few_threads(run: Path) -> None:
    """A thread for each would be all that the job beside it may have."""

    def ask(url: str) -> tuple[list[int], int]:
        where = urlsplit(url)
        place = (str(where.hostname), where.port or 0)
        before = threading.active_count()
        slow = [socket.create_connection(place, timeout=PATIENCE_S) for _ in range(40)]
        found = []
        for letter in (b"G", b"E", b"T", b" "):
            for one in slow:
                with suppress(OSError):  # it was hung up on
                    one.send(letter)
            found.append(get(url)[0])
        threads = threading.active_count() - before
        for one in slow:
            one.close()
        return found, threads

    ((found, threads),) = served(run, ask)
    assert found == [200] * 4
    assert threads <= loopback.MOST_AT_ONCE


def test_who_falls_silent_is_hung_up_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "SILENCE_S", 0.2)

    def ask(url: str) -> bytes:
        where = urlsplit(url)
        place = (str(where.hostname), where.port or 0)
        with socket.create_connection(place, timeout=PATIENCE_S) as silent:
            return silent.recv(1)

    assert served(run, ask) == [b""]


def test_who_hangs_up_prints_nothing_and_who_names_two_hosts_is_refused(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def ask(url: str) -> bytes:
        where = urlsplit(url)
        place = (str(where.hostname), where.port or 0)
        for _ in range(4):
            with socket.create_connection(place, timeout=PATIENCE_S) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with socket.create_connection(place, timeout=PATIENCE_S) as one:
            hosts = b"Host: localhost\r\nHost: evil.example\r\n"
            one.sendall(b"GET /metrics HTTP/1.1\r\n" + hosts + b"\r\n")
            return one.recv(64)

    (said,) = served(run, ask)
    assert said.split()[1] == b"403"
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err
    assert "failed" not in printed.err


def test_it_listens_on_ipv6(run: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    (answer,) = served(run, get, host="::1")
    assert "rltrace_steps_total" in answer[2]


@pytest.mark.parametrize("end", ["ended", "deleted"])
def test_it_ends_with_the_job_or_the_run(
    run: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(exporting, "_LOOKS_EVERY_S", 0.01)
    monkeypatch.setattr(exporting, "_LAST_SCRAPES_S", 0.02)
    if end == "ended":
        served(run, lambda url: None, ends_by=None, until_end=True)
        return
    with pytest.raises(RltraceError, match="was deleted") as raised:
        served(run, lambda url: shutil.rmtree(run), ends_by=None)
    assert raised.value.exit_code == UNREADABLE


def test_a_port_that_is_taken_is_said(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        words = ("-m", "rltrace", "export", "prometheus", str(run), "--port", port)
        done = untraced(sys.executable, *words)
    assert done.returncode == WRONG_USAGE
    assert f"port {port}" in done.stderr


def test_once_prints_and_ends(run: Path) -> None:
    words = ("export", "prometheus", run, "--once")
    said = invoke(*words).stdout
    assert 'rltrace_steps_total{run="run"} 3\n' in said
    assert 'rltrace_step_exposed_seconds{run="run",stage="train"}' in said, "as the report says"
    assert '"name": "rltrace_steps_total"' in invoke(*words, "--json").stdout


def test_what_is_no_text_is_escaped_and_answered(run: Path) -> None:
    """A folder may have a name that is none, which is then the run's id."""
    half = {"id": "a\udce9", "framework": "\ud800", "framework_version": "\ud800"}
    update_run_json(str(run), **half)
    ((status, _, text),) = served(run, get)
    assert status == 200
    assert 'rltrace_run_alive{run="a\\\\udce9"} 0' in text


def test_a_run_that_has_grown_is_judged_by_the_size_that_it_has_by_then(run: Path) -> None:
    """What may be written to when the exporter began may be too little for its report."""
    little = "import resource; _, hard = resource.getrlimit(resource.RLIMIT_DATA); "
    little += "resource.setrlimit(resource.RLIMIT_DATA, (160 << 20, hard)); "
    command = [sys.executable, "-c", little + _JUDGE, str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)
