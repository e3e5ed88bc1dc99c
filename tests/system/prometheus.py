"""A real Prometheus: configured, started, asked and ended by a test."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.framework_jobs import free_port


def promtool(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs promtool: `promtool("check", "config", path)`."""
    return subprocess.run(
        ["promtool", *words], cwd=folder, capture_output=True, text=True, check=False
    )


class Prometheus:
    """One server with its storage in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self._server: subprocess.Popen[bytes] | None = None

    def start(self, config: Path) -> None:
        """Starts it with a configuration file, and returns once it answers. Errors:
        `AssertionError` with its log, if it does not."""
        log = self.folder / "log"
        command = ["prometheus", f"--config.file={config}"]
        command += [f"--storage.tsdb.path={self.folder / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{self.port}"]
        with log.open("wb") as into:
            self._server = subprocess.Popen(command, cwd=self.folder, stdout=into, stderr=into)
        deadline = time.monotonic() + 60
        while not self._ready():
            stands = self._server.poll() is None and time.monotonic() < deadline
            assert stands, log.read_text("utf-8", "replace")
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def api(self, path: str, **parameters: object) -> Any:
        """The `data` of an answer of the HTTP API: `api("query", query="up")`. Errors:
        `AssertionError` with Prometheus's own message, for a query that it refuses."""
        asked = urllib.parse.urlencode(parameters)
        try:
            address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{asked}"
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode("utf-8", "replace")) from None

    def until_scraped(self, job: str, seconds: float = 60) -> None:
        """Waits until all targets of a job were scraped well."""
        deadline = time.monotonic() + seconds
        while True:
            up = self.api("query", query=f'up{{job="{job}"}}')["result"]
            if up and all(series["value"][1] == "1" for series in up):
                return
            assert time.monotonic() < deadline, self.api("targets")
            time.sleep(0.2)

    def stop(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait()
            self._server = None
