"""Ray clusters that are up before a job: in a session of their own, with their own folder and
ports, ended by that session (`ray stop` would end every Ray process of the machine)."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.hooks.conftest import clean_environment, untraced
from tests.patience import PATIENCE_S

PY = sys.executable
RAY = str(Path(PY).parent / "ray")
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@contextmanager
def started_cluster(*options: str, **environment: str) -> Iterator[dict[str, str]]:
    """A cluster that knows nothing of rltrace: its `address`, and that of its `dashboard`, which is
    there if jobs can be submitted to it."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("", 0))
        two.bind(("", 0))
        port, dashboard = one.getsockname()[1], two.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="rlt")  # short: it holds unix sockets
    command = [RAY, "start", "--head", "--block", "--disable-usage-stats", *options]
    command += [f"--port={port}", f"--temp-dir={folder}", f"--dashboard-port={dashboard}"]
    command += [f"--include-dashboard={can_submit()}", "--dashboard-agent-listen-port=0"]
    with open(Path(folder, "head.log"), "wb") as log:
        head = subprocess.Popen(
            command,
            env=clean_environment(**ENVIRONMENT, **submit_environment(), **environment),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        text = ""
        until = time.monotonic() + PATIENCE_S
        while "Ray runtime started" not in text and time.monotonic() < until:
            assert head.poll() is None, text
            time.sleep(0.2)
            text = Path(folder, "head.log").read_text()
        address = text.partition("ray start --address='")[2].partition("'")[0]
        yield {"address": address, "dashboard": f"http://127.0.0.1:{dashboard}"}
    finally:
        head.send_signal(signal.SIGTERM)
        try:
            head.wait(60)
        except subprocess.TimeoutExpired:
            head.kill()
        for pid in _session(head.pid):
            with suppress(ProcessLookupError):  # some end by themselves, meanwhile
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def can_submit() -> bool:
    """Whether the packages of `ray[default]` are there."""
    return all(_importable(name) for name in ("aiohttp_cors", "opencensus", "prometheus_client"))


def _importable(name: str) -> bool:
    return untraced(PY, "-c", f"import {name}", **submit_environment()).returncode == 0


def submit_environment() -> dict[str, str]:
    """What `ray[default]` adds to Ray may lie in a folder of its own: with it installed, every
    local cluster would start a dashboard."""
    folder = os.environ.get("RAY_DEFAULT_PACKAGES", "")
    return {"PYTHONPATH": folder} if folder else {}


def _session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader:
                found.append(int(entry.name))
    return found
