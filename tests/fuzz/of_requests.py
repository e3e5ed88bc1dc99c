"""What others ask of rltrace's HTTP servers."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any, cast

from rltrace.testing.inside.report import loopback as loopback_module
from rltrace.testing.inside.report import serving
from rltrace.testing.inside.report import serving as serving_module
from rltrace.testing.inside.run import exporter
from rltrace.testing.inside.run import exporter as exporter_module
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


_LOOPBACK = loopback_module.__name__

_METRICS = Target("metrics-request", _ask_metrics, (exporter_module.__name__, _LOOPBACK))

TARGETS = (
    _METRICS,
    Target("timeline-request", _ask_timeline, (serving_module.__name__, _LOOPBACK), _METRICS.seeds),
)
