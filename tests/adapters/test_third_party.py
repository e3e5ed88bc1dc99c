"""A package of somebody else's brings an adapter: installed, and found by its entry point."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import rltrace
from tests.docs.test_docs import examples, page
from tests.hooks.conftest import wrapped

HERE = Path(__file__).parent / "third_party"
ADAPTER = HERE / "adapter"


def test_an_installed_adapter_of_somebody_else_s_is_found_and_traces(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ["pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    built = shutil.copytree(ADAPTER, tmp_path / "adapter")
    subprocess.run([sys.executable, "-m", *install, "--target", site, built], check=True)
    job = ("--out", "run", "--", sys.executable, "-c", "from foorl.loop import train; train(2)")
    done = wrapped(tmp_path, *job, PYTHONPATH=f"{site}:{HERE / 'foorl'}")
    assert done.returncode == 0, done.stderr
    run = rltrace.open_run(tmp_path / "run")
    found = run.sql("SELECT name, stage, step, bytes FROM spans ORDER BY start_ns").fetchall()
    assert found == [
        row
        for step in range(2)
        for row in (
            ("step", "step", step, None),
            ("idle/queue", "wait", step, None),
            ("generate", "rollout", step, None),
            ("Engine.load", "sync", step, 1000),
        )
    ]
    rewards = run.sql("SELECT value FROM samples WHERE counter = 'reward'").fetchall()
    assert rewards == [(0.5,), (0.5,)]
    assert [p for p in run.problems if p["what"] != "no-gpu"] == []


def test_it_is_the_page_s_example() -> None:
    code = (ADAPTER / "foorl_adapter.py").read_text("utf-8")
    assert dict(examples(page("adapters.md")))["foorl_adapter.py"] == code
