"""`rltrace timeline --open`: the real Perfetto UI, in a browser, with no internet."""

from __future__ import annotations

import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page

import rltrace
from benchmarks.make_trace import make
from benchmarks.synthetic.workload import Workload
from rltrace import dashboards
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.system.web import Seen

REFUSED = (
    *("Content Security Policy", "Content-Security-Policy"),
    *("is_internal_user", ":9001/", "LiveReload"),
)
"""What the UI would ask for elsewhere, and says when it is not let."""


Served = tuple[Run, str]
"""A run, and the address that the command said."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    make(tmp_path / "run", Workload(placement="async", steps=6))
    command = [sys.executable, "-m", "rltrace", "timeline", str(tmp_path / "run")]
    command += ["--open", "--no-browser"]
    pipe = subprocess.PIPE
    server = subprocess.Popen(command, stderr=pipe, stdout=pipe, text=True)
    assert server.stderr is not None
    address = server.stderr.readline().strip()
    try:
        assert re.match(r"http://127\.0\.0\.1:\d+/#!/\?url=", address), address
        yield rltrace.open_run(tmp_path / "run"), address
    finally:
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=60)
    assert server.returncode == 0, "Ctrl-C is how it ends"
    assert "Traceback" not in said


def asked(page: Page, query: str) -> list[Any]:
    """The first row that the page's own engine answers with, of columns `a` and `b`."""
    found: list[Any] = page.evaluate(
        """async (query) => {
            const row = (await window.app.trace.engine.query(query)).firstRow({a: 0, b: 0});
            return [row.a, row.b];
        }""",
        query,
    )
    return found


OWN = re.compile(r"--(rollout|reward|train|sync): light-dark\(#(\w{6}),")
"""The colours that stages have in the report's page."""


def test_it_is_laid_out_as_the_report_and_one_click_says_how_stale_a_sample_was(
    served: Served, page: Page, seen: Seen
) -> None:
    run, address = served
    page.goto(address, wait_until="commit")
    page.wait_for_function("() => window.app?.trace?.engine", polling=500)
    page.get_by_text("lag of what is trained on: largest").first.wait_for()  # pinned last of all
    pinned, groups, begins = page.evaluate(
        """() => {
            const {workspace, timeline} = window.app.trace;
            const names = (tracks) => tracks.map((track) => track.name.split(" (")[0]);
            const begins = timeline.visibleWindow.toTimeSpan().start.toString();
            return [names(workspace.pinnedTracks), names(workspace.children), begins];
        }"""
    )
    assert pinned[:3] == ["steps", "critical path", "policy versions"]
    assert groups.index("driver 0") < groups.index("rollout 0") < groups.index("learner 0")
    ((first,),) = run.sql("SELECT min(start_ns) FROM steps").fetchall()
    assert int(begins) == pytest.approx(first, abs=10**9), "the view begins at the first step"
    css = (dashboards.folder("report") / "page.css").read_text("utf-8")
    missing = {stage: bytes.fromhex(own) for stage, own in OWN.findall(css)}
    deadline = time.monotonic() + 60  # tracks are drawn one by one
    while missing := {s: own for s, own in missing.items() if not has(page.screenshot(), own)}:
        assert time.monotonic() < deadline, missing

    counted = asked(page, "SELECT count(*) AS a, 0 AS b FROM slice WHERE category = 'trajectory'")
    assert counted[0] == run.rows("trajectories")

    sample, lag = asked(
        page,
        "SELECT id AS a, extract_arg(arg_set_id, 'debug.lag_versions') AS b FROM slice "
        "WHERE category = 'trajectory' AND b > 0 LIMIT 1",
    )
    page.evaluate(
        "(id) => window.app.trace.selection.selectSqlEvent('slice', id, {scrollToSelection: true})",
        sample,
    )
    page.get_by_text("Following Flows").wait_for()
    page.wait_for_function("() => document.body.innerText.includes('lag_versions')", polling=500)
    panel = page.locator("body").inner_text()
    assert re.search(rf"lag_versions\D*{lag}\b", panel), "one click says how stale it was"

    assert not [e for e in seen.errors if not any(known in e for known in REFUSED)]
    elsewhere = {url for url in seen.requests if not url.startswith(address.split("#")[0])}
    assert elsewhere <= {e.removeprefix("failed: ") for e in seen.errors}, "nothing is loaded"


def has(picture: bytes, colour: bytes) -> bool:
    """Whether much of a picture is of nearly that colour."""
    with Image.open(BytesIO(picture)) as image:
        found = image.convert("RGB").getcolors(maxcolors=1 << 24) or []
    return any(math.dist(one, colour) < 80 for pixels, one in found if pixels > 100)
