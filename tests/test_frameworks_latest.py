"""`make frameworks-latest` takes the newest final release, and what fails is a row of its table."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests import frameworks_latest
from tests.docs.frameworks import latest_table
from tests.frameworks_latest import Framework, NotInstalled, newest, try_out


def released(version: str, **more: Any) -> dict[str, Any]:
    return {"filename": f"rl-{version}-py3-none-any.whl", **more}


FILES = {
    "rl": [
        released("0.9.0", **{"requires-python": ">=3.10"}),
        released("0.10.0", **{"requires-python": ">=3.99", "upload-time": "2026-01-02T03:04:05Z"}),
        released("0.11.0", yanked="broken"),
        released("1.0rc1"),
        {"filename": "rl-2.0.exe"},
    ],
    "empty": [],
}
"""What an index has of a package; it has no other."""


@pytest.fixture(autouse=True)
def _index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An index of these packages stands in for the real one, whose releases change."""

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files = FILES.get(self.path.strip("/"))
            self.send_response(404 if files is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"files": files}).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not told."""

    with HTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host, port = server.server_address[:2]
        monkeypatch.setattr(frameworks_latest, "INDEX", f"http://{host!s}:{port}")
        yield
        server.shutdown()
        thread.join()


def test_the_newest_release_is_a_final_one_that_was_not_withdrawn() -> None:
    found = newest("RL")
    assert (str(found.version), found.day) == ("0.10.0", "2026-01-02")
    assert "3.11" not in found.asks_for


@pytest.mark.parametrize("package", ["empty", "unknown"])
def test_a_package_without_a_release_is_not_installed(package: str) -> None:
    with pytest.raises(NotInstalled):
        newest(package)


@pytest.mark.parametrize(("package", "version"), [("empty", ""), ("unknown", "")])
def test_what_cannot_be_installed_is_a_row(package: str, version: str) -> None:
    found = try_out(Framework("An RL", package, ()))
    assert (found.version, found.rows, found.suite, len(found.broke)) == (version, None, None, 1)
    assert latest_table({"An RL": vars(found)}).count("\n") == 2
