"""The dashboards and rules against a real Prometheus that scrapes the real exporter, on a recorded
run and on a job that runs; their JSON against Grafana's own types."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import rltrace
from rltrace import dashboards
from rltrace.report.prometheus_metrics import METRICS
from tests.framework_jobs import free_port
from tests.report.everything import everything
from tests.report.test_prometheus import ABSENT_WHERE_NOTHING_IS_LOST

HERE = Path(__file__).parent
BOARDS = sorted(dashboards.folder("grafana").glob("*.json"))
RULES = dashboards.folder("prometheus")
WINDOW = "10s"
PATIENCE_S = 300


def promtool(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs promtool: `promtool("check", "config", path)`."""
    command = ["promtool", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


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


@dataclass(frozen=True)
class Expression:
    board: str
    panel: str
    text: str

    def filled(self, run: str) -> str:
        """With the variables put in, as Grafana does."""
        text = self.text.replace("$__rate_interval", WINDOW).replace("$window", WINDOW)
        return text.replace("$run", run)


EXPRESSIONS = [
    Expression(board.stem, panel["title"], target["expr"])
    for board in BOARDS
    for panel in json.loads(board.read_text("utf-8"))["panels"]
    for target in panel.get("targets", ())
]


@contextmanager
def exporting(run: Path) -> Iterator[str]:
    """The exporter beside a run; its URL."""
    command = ["rltrace", "export", "prometheus", str(run), "--port", "0", "--lag-budget", "1"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as exporter:
        assert exporter.stdout is not None
        said = ""
        while not said.rstrip().endswith("}"):
            said += (line := exporter.stdout.readline())
            assert line, "the exporter has ended"
        yield json.loads(said)["url"]
        exporter.send_signal(signal.SIGTERM)
        assert exporter.wait() == 0, "the exporter ends cleanly when it is told to"


@contextmanager
def scraping(folder: Path, url: str) -> Iterator[Prometheus]:
    """A Prometheus with the files of dashboards/, that scrapes every second."""
    server = Prometheus(folder)
    config = (RULES / "prometheus.yml").read_text("utf-8").replace("15s", "1s")
    target = url.removeprefix("http://").removesuffix("/metrics")
    assert "127.0.0.1:9464" in config
    (folder / "prometheus.yml").write_text(config.replace("127.0.0.1:9464", target))
    rules = (RULES / "rules.yml").read_text("utf-8").replace("interval: 15s", "interval: 1s")
    (folder / "rules.yml").write_text(rules)
    server.start(folder / "prometheus.yml")
    try:
        server.until_scraped("rltrace")
        yield server
    finally:
        server.stop()


@dataclass(frozen=True)
class Watched:
    """A run, and the Prometheus that watches it."""

    path: Path
    url: str
    server: Prometheus

    def last(self, query: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series now. A scrape that failed, as one may on a busy
        machine, leaves none until the next."""
        found: list[Any] = []

        def series() -> bool:
            found[:] = self.server.api("query", query=query)["result"]
            return bool(found)

        until(query, series)
        return [(one["metric"], float(one["value"][1])) for one in found]

    def values(self, expression: Expression) -> list[list[float]]:
        """The values of each series in the last seconds."""
        now = time.time()
        filled = expression.filled(self.path.name)
        found = self.server.api("query_range", query=filled, start=now - 5, end=now, step=1)
        return [[float(v) for _, v in series["values"]] for series in found["result"]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("recorded")
    everything(folder / "run-1")
    with exporting(folder / "run-1") as url, scraping(folder / "prometheus", url) as server:
        yield Watched(folder / "run-1", url, server)


def until(what: str, holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


@contextmanager
def job_of(run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A job that runs, once it has recorded something."""
    command = ["rltrace", "wrap", "--out", str(run), "--", sys.executable]
    job = subprocess.Popen([*command, str(HERE / "dashboard_job.py")], stdin=subprocess.PIPE)
    try:
        until("spans", lambda: job.poll() is not None or list(run.glob("spans/*.arrows")))
        assert job.poll() is None
        yield job
    finally:
        job.communicate()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("live")
    run = folder / "run-2"
    with job_of(run), exporting(run) as url, scraping(folder / "prometheus", url) as server:
        yield Watched(run, url, server)


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda e: f"{e.board}: {e.panel}")
def test_an_expression_has_numbers(
    recorded: Watched, live: Watched, expression: Expression
) -> None:
    def numbers() -> list[float]:
        return [v for values in live.values(expression) for v in values if math.isfinite(v)]

    until(expression.filled("run-1"), lambda: recorded.values(expression))
    until(expression.filled("run-2"), numbers)


def test_every_metric_is_exported_and_reaches_prometheus(live: Watched) -> None:
    missing = set(METRICS) - ABSENT_WHERE_NOTHING_IS_LOST
    names: set[str] = set()

    def all_there() -> bool:
        names.update(live.server.api("label/__name__/values"))
        return missing <= names | {re.sub("_(bucket|sum|count)$", "", name) for name in names}

    until("metrics", all_there)
    exported = {name for name in names if name.startswith("rltrace_")}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in exported} <= set(METRICS)


def test_rules_are_evaluated_and_nothing_is_wrong_with_them(live: Watched) -> None:
    def evaluated() -> list[tuple[str, str]]:
        groups = live.server.api("rules")["groups"]
        return [(rule["name"], rule["health"]) for group in groups for rule in group["rules"]]

    until("rules", lambda: all(health == "ok" for _, health in evaluated()))
    assert len(evaluated()) == 11


def test_a_recorded_runs_counts_are_its_tables(recorded: Watched) -> None:
    run = rltrace.open_run(recorded.path)
    count, seconds = run.sql("SELECT count(*), sum(seconds) FROM steps").fetchall()[0]
    assert [v for _, v in recorded.last("rltrace_steps_total")] == [count]
    total = [v for _, v in recorded.last("rltrace_step_duration_seconds_sum")]
    assert total == [pytest.approx(seconds)]
    fates = run.sql("SELECT fate, count(DISTINCT trajectory) FROM uses GROUP BY fate").fetchall()
    samples = {labels["fate"]: v for labels, v in recorded.last("rltrace_samples_total")}
    assert samples == dict(fates)
    for labels, at_most in recorded.last('rltrace_lag_versions_bucket{le=~"0|1|2"}'):
        lags = f"SELECT count(*) FROM lags WHERE fate = 'trained' AND lag <= {labels['le']}"
        assert run.sql(lags).fetchall() == [(at_most,)]


def test_the_end_of_the_job_is_seen(tmp_path: Path) -> None:
    run = tmp_path / "run-3"
    with job_of(run) as job, exporting(run) as url:

        def alive() -> str | None:
            with urllib.request.urlopen(url) as answer:
                found = re.search(r"^rltrace_run_alive\{.*\} (\d)$", answer.read().decode(), re.M)
            return found and found[1]

        assert alive() == "1"
        job.communicate()
        until("the end", lambda: alive() == "0")


def test_promtool_accepts_config_rules_and_their_tests(recorded: Watched) -> None:
    for words in (
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules.test.yml"),
    ):
        done = promtool(*words, folder=RULES)
        assert done.returncode == 0, done.stdout + done.stderr
    with urllib.request.urlopen(recorded.url) as answer:
        text = answer.read()
    check = ["promtool", "check", "metrics"]
    done = subprocess.run(check, input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_provisioning_names_the_source_and_the_dashboards() -> None:
    folder = dashboards.folder("provisioning")
    files = [yaml.safe_load(path.read_text("utf-8")) for path in sorted(folder.rglob("*.yaml"))]
    boards, sources = files
    assert {boards["apiVersion"], sources["apiVersion"]} == {1}
    (source,), (provider,) = sources["datasources"], boards["providers"]
    assert (source["type"], provider["type"]) == ("prometheus", "file")
    scrapes = yaml.safe_load((RULES / "prometheus.yml").read_text("utf-8"))["global"]
    assert source["jsonData"]["timeInterval"] == scrapes["scrape_interval"]
    told = (HERE.parents[1] / "docs/dashboards.md").read_text("utf-8")
    assert provider["options"]["path"] in told


WRONG = {
    '"unit": "s"': '"unit": 5',
    '"showHeader": true': '"showHead": true',
    '"type": "timeseries"': '"type": "timeserie"',
    '"fillOpacity": 0': '"fillOpacity": "none"',
}


def test_dashboards_are_of_grafanas_types(tmp_path: Path, node_modules: Path) -> None:
    shutil.copy(HERE / "dashboards.ts", tmp_path)
    (tmp_path / "node_modules").symlink_to(node_modules)
    lines = ['import type { Board } from "./dashboards.js";']
    lines += [f"export const b{n}: Board = {b.read_text('utf-8')};" for n, b in enumerate(BOARDS)]
    for n, (right, wrong) in enumerate(WRONG.items()):
        text = json.dumps(json.loads(BOARDS[0].read_text("utf-8").replace(right, wrong, 1)))
        lines += ["// @ts-expect-error", f"export const wrong{n}: Board = {text};"]
    (tmp_path / "check.ts").write_text("\n".join(lines), "utf-8")
    options = ["--noEmit", "--strict", "--skipLibCheck"]
    options += ["--target", "es2022", "--module", "nodenext"]
    tsc = [str(node_modules / ".bin/tsc"), *options, "check.ts"]
    done = subprocess.run(tsc, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == ""
