"""What others ask of rltrace's HTTP servers, and what a collector answers."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any, cast

from rltrace.testing.inside.report import loopback as loopback_module
from rltrace.testing.inside.report import serving
from rltrace.testing.inside.report import serving as serving_module
from rltrace.testing.inside.run import exporter, otlp_sender
from rltrace.testing.inside.run import exporter as exporter_module
from rltrace.testing.inside.run import otlp_sender as otlp_sender_module
from tests.fuzz.target import Target, put

_SECRET = b"what nobody is to be shown"


class _Asking:
    """A connection on which one request comes; `said` is what was answered."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.said = b""

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._request)

    def sendall(self, data: bytes) -> None:
        self.said += data


class _Exporter:
    """One whose run has no figures."""

    run = "a-run"

    def text(self) -> str:
        return "# EOF\n"


_SCRAPED = exporter._handler(cast(Any, _Exporter()), only_here=True)


def _ask_metrics(data: bytes, folder: Path) -> None:
    asking = _Asking(data)
    _SCRAPED(cast(Any, asking), ("127.0.0.1", 9), cast(Any, None))
    _check_who(data, asking.said)


def _ask_timeline(data: bytes, folder: Path) -> None:
    shown = folder / "shown"
    if not shown.exists():
        shown.mkdir()
        put(shown / "index.html", b"<html>")
        put(folder / "trace.json", b"{}")
        put(folder / "secret", _SECRET)
    asking = _Asking(data)
    answer = partial(serving._Handler, folder / "trace.json", shown)
    answer(cast(Any, asking), ("127.0.0.1", 9), cast(Any, None))
    _check_who(data, asking.said)
    assert _SECRET not in asking.said, "a file that is not served"


def _check_who(data: bytes, said: bytes) -> None:
    """Nothing is said to who asks for no address of this machine."""
    if said.startswith(b"HTTP/1.0 200"):
        named = b"localhost" in data.lower() or b"127." in data or b"::" in data
        assert named, "answered who asks for another machine"


def _requests() -> list[bytes]:
    host = b"Host: 127.0.0.1:9\r\nAccept: */*\r\n\r\n"
    paths = (b"/metrics?a=b", b"/", b"/index.html", b"/rltrace/trace.json", b"/../secret")
    return [
        *(b"GET %s HTTP/1.1\r\n%s" % (path, host) for path in paths),
        b"GET /metrics HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 5\r\n\r\n",
        b"GET /%2e%2e/secret HTTP/1.0\r\nHost: localhost\r\nRange: bytes=0-1\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: evil.example\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    ]


def _read_answer(data: bytes, folder: Path) -> None:
    sender = otlp_sender._Sender("http://127.0.0.1:4318", {})
    sender._partly(data)


_ANSWERS = (
    b'{"partialSuccess": {"rejectedSpans": "7", "errorMessage": "too old"}}',
    b'{"partialSuccess": {"rejectedSpans": 3}}',
    b"\n\x02\x08\x01",
)

_LOOPBACK = loopback_module.__name__

TARGETS = (
    Target(
        "metrics-request",
        _ask_metrics,
        _requests,
        (exporter_module.__name__, _LOOPBACK),
    ),
    Target(
        "timeline-request",
        _ask_timeline,
        _requests,
        (serving_module.__name__, _LOOPBACK),
    ),
    Target("collector", _read_answer, lambda: [*_ANSWERS], (otlp_sender_module.__name__,)),
)
