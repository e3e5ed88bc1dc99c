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
from rltrace.testing.inside.report import METRICS
from tests.framework_jobs import free_port
from tests.report.everything import everything
from tests.report.test_prometheus import ABSENT_WHERE_ALL_IS_WELL

HERE = Path(__file__).parent
BOARDS = sorted(dashboards.folder("grafana").glob("*.json"))
RULES = dashboards.folder("prometheus")
WINDOW = "10s"
PATIENCE_S = 300


def promtool(*words: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["promtool", *words], capture_output=True, check=False, **how)


def until(what: str, holds: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


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


@dataclass(frozen=True)
class Watched:
    """A run, the address of its exporter, and the Prometheus that scrapes it."""

    path: Path
    url: str
    port: int

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

    def is_scraped(self) -> bool:
        """Whether it answers, and all targets were scraped well."""
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5).close()
        except OSError:
            return False
        up = self.api("query", query='up{job="rltrace"}')["result"]
        return bool(up) and all(series["value"][1] == "1" for series in up)

    def last(self, query: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series now. A scrape that failed, as one may on a busy
        machine, leaves none until the next."""
        found: list[Any] = []

        def series() -> bool:
            found[:] = self.api("query", query=query)["result"]
            return bool(found)

        until(query, series)
        return [(one["metric"], float(one["value"][1])) for one in found]

    def values(self, expression: Expression) -> list[list[float]]:
        """The values of each series in the last seconds."""
        now = time.time()
        filled = expression.filled(self.path.name)
        found = self.api("query_range", query=filled, start=now - 5, end=now, step=1)
        return [[float(v) for _, v in series["values"]] for series in found["result"]]


@contextmanager
def watched(run: Path) -> Iterator[Watched]:
    """A run, and a Prometheus with the files of dashboards/ that scrapes it every second."""
    folder, port = run.parent / "prometheus", free_port()
    folder.mkdir()
    config = (RULES / "prometheus.yml").read_text("utf-8").replace("15s", "1s")
    rules = (RULES / "rules.yml").read_text("utf-8").replace("interval: 15s", "interval: 1s")
    (folder / "rules.yml").write_text(rules)
    assert "127.0.0.1:9464" in config
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with exporting(run) as url, (folder / "log").open("wb") as log:
        target = url.removeprefix("http://").removesuffix("/metrics")
        (folder / "prometheus.yml").write_text(config.replace("127.0.0.1:9464", target))
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            found = Watched(run, url, port)
            until("a scrape", lambda: server.poll() is not None or found.is_scraped(), 120)
            assert server.poll() is None, (folder / "log").read_text("utf-8", "replace")
            yield found
        finally:
            server.terminate()
            server.wait()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(everything(tmp_path_factory.mktemp("recorded") / "run-1")) as found:
        yield found


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
    run = tmp_path_factory.mktemp("live") / "run-2"
    with job_of(run), watched(run) as found:
        yield found


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda e: f"{e.board}: {e.panel}")
def test_an_expression_has_numbers(
    recorded: Watched, live: Watched, expression: Expression
) -> None:
    def numbers() -> list[float]:
        return [v for values in live.values(expression) for v in values if math.isfinite(v)]

    until(expression.filled("run-1"), lambda: recorded.values(expression))
    until(expression.filled("run-2"), numbers)


def test_every_metric_is_exported_and_reaches_prometheus(live: Watched) -> None:
    missing = set(METRICS) - ABSENT_WHERE_ALL_IS_WELL
    names: set[str] = set()

    def all_there() -> bool:
        names.update(live.api("label/__name__/values"))
        return missing <= names | {re.sub("_(bucket|sum|count)$", "", name) for name in names}

    until("metrics", all_there)
    exported = {name for name in names if name.startswith("rltrace_")}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in exported} <= set(METRICS)


def test_rules_are_evaluated_and_nothing_is_wrong_with_them(live: Watched) -> None:
    def evaluated() -> list[tuple[str, str]]:
        groups = live.api("rules")["groups"]
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
        done = promtool(*words, cwd=RULES)
        assert done.returncode == 0, done.stdout + done.stderr
    with urllib.request.urlopen(recorded.url) as answer:
        text = answer.read()
    done = promtool("check", "metrics", input=text)
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
    told = (HERE.parents[1] / "docs/how-to/dashboards.md").read_text("utf-8")
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
