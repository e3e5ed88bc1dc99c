"""Serves a run's metrics over HTTP, beside the job or afterwards."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from subprocess import PIPE

from rltrace.analysis.live.recent_rows import SPARING
from rltrace.analysis.live.run_meters import RunMeters
from rltrace.report.formats import prometheus
from rltrace.report.formats.loopback import BoundedServer, is_loopback, names_loopback
from rltrace.report.formats.prometheus import CONTENT_TYPE, Families, exposition, families
from rltrace.run.child_process import ended_by_signal
from rltrace.run.run_folders import check_followed, open_readable
from rltrace.trace.errors import UNREADABLE, RltraceError, WrongUsage
from rltrace.trace.read.bounds import hold_memory

PATH = "/metrics"
_FRESH_S, _LOOKS_EVERY_S, _LAST_SCRAPES_S = 1.0, 5.0, 60.0
_JUDGED_STEPS = 50
_FEW_STEPS = 10  # so early the verdict may change with each
_JUDGE = "import sys; from rltrace.run.exporter import judge; judge(sys.argv[1])"


class Exporter:
    """The metrics of the run in `path`, of which only the files are read: the job is asked nothing.
    Errors: `RltraceError` when there is no run, or it is over and nothing of it can be read."""

    def __init__(self, path: Path, lag_budget: float = math.inf) -> None:
        self._meters = RunMeters(path, lag_budget)
        check_followed(self._meters.job, self._meters.last_event_ns >= 0)
        self._lock = threading.Lock()
        self._text = ""
        self._read_at = -math.inf
        self._judged: list[prometheus.Value] = []
        self._judged_at = (0, False)
        self._spent_s = self._not_before_s = 0.0
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def run(self) -> str:
        return self._meters.job.id

    def values(self) -> Families:
        return families(self._meters, self._judged)

    def text(self) -> str:
        with self._lock:
            if time.monotonic() - self._read_at >= _FRESH_S:
                self._meters.look()
                self._text = exposition(self.values())
                self._read_at = time.monotonic()
            return self._text

    def is_over(self) -> bool:
        """Whether nothing more is to come from the run. Errors: `RltraceError` once it is gone."""
        with self._lock:
            self._meters.look()
            if self._meters.follower.gone:
                message = f"{self._meters.follower.path} was deleted: nothing is left to export"
                raise RltraceError(message, UNREADABLE)
            return self._meters.job.is_over

    def judge(self, waits: bool = False) -> None:
        """Asks what the report says of the last steps, where there are more and it is time. A child
        looks, since that takes memory; what it found is taken later, or now if one `waits`."""
        if self._child is None:
            now = len(self._meters.steps.windows), self._meters.job.is_over
            is_time = now[1] or time.monotonic() >= self._not_before_s
            if now == self._judged_at or not is_time:
                return
            self._judged_at, self._spent_s = now, _children_s()
            command = [sys.executable, "-c", _JUDGE, self._meters.job.path]
            quiet = subprocess.DEVNULL
            self._child = subprocess.Popen(command, stdin=quiet, stdout=PIPE, stderr=quiet)
        if waits or self._child.poll() is not None:
            said, _ = self._child.communicate()
            found = json.loads(said) if self._child.returncode == 0 else ()
            self._judged = [(metric, tuple(labels), value) for metric, labels, value in found]
            spared = SPARING if self._judged_at[0] > _FEW_STEPS else SPARING / 10
            self._not_before_s = time.monotonic() + spared * (_children_s() - self._spent_s)
            self._child = None

    def close(self) -> None:
        if self._child is not None:
            with self._child:
                self._child.kill()


def _children_s() -> float:
    return sum(os.times()[2:4])


def judge(path: str) -> None:
    """Prints what a child of `Exporter.judge` finds. Errors: `RltraceError`."""
    from rltrace.analysis.run_analysis import RunAnalysis
    from rltrace.analysis.summary import summary_of
    from rltrace.analysis.timeline.analysed_part import StepSelection, narrow

    hold_memory()  # by the size that the run has come to by then
    run = open_readable(Path(path))
    narrow(run, StepSelection(newest=_JUDGED_STEPS))
    print(json.dumps(prometheus.judgement(summary_of(RunAnalysis(run)))))


def serve(
    exporter: Exporter, host: str, port: int, until_end: bool, serving: Callable[[str], None]
) -> None:
    """Serves until SIGINT or SIGTERM, or with `until_end` a minute after the job has ended, to be
    scraped once more. `serving` is told the URL. Errors: `RltraceError`: no port, a deleted run."""
    try:
        server = BoundedServer((host, port), _handler(exporter, only_here=is_loopback(host)))
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        said = f"cannot serve on {host} port {port}: {why}; give another --port"
        raise WrongUsage(said) from None
    with closing(exporter), ended_by_signal() as ended, server.answering():
        in_url = f"[{host}]" if ":" in host else host
        serving(f"http://{in_url}:{server.server_address[1]}{PATH}")
        over_at: float | None = None
        while not ended.wait(_LOOKS_EVERY_S):
            exporter.judge()
            if exporter.is_over() and until_end:
                over_at = over_at or time.monotonic()
                if time.monotonic() - over_at >= _LAST_SCRAPES_S:
                    return


def _handler(exporter: Exporter, only_here: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers /metrics, and / with where that is; `only_here`: who asks for this machine's own
        address or name (DNS rebinding)."""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if only_here and not names_loopback(self.headers):
                self._answer(403, "this address answers to localhost only: see --host\n")
            elif path == PATH:
                self._answer(200, exporter.text(), CONTENT_TYPE)
            elif path == "/":
                self._answer(200, f"rltrace, run {exporter.run}: {PATH}\n")
            else:
                self._answer(404, f"there is nothing but {PATH} here\n")

        def _answer(self, code: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not told."""

    return Handler
