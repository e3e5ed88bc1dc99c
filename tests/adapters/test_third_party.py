"""A package of somebody else's brings an adapter: installed, and found by its entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import rltrace
from tests.docs.test_docs import examples, page
from tests.hooks.conftest import WRAP, clean_environment

HERE = Path(__file__).parent / "third_party"
ADAPTER = HERE / "adapter"


def test_an_installed_adapter_of_somebody_else_s_is_found_and_traces(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ["pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    built = tmp_path / "adapter"
    built.mkdir()
    for file in ADAPTER.iterdir():
        if file.is_file():
            (built / file.name).write_bytes(file.read_bytes())
    subprocess.run([sys.executable, "-m", *install, "--target", site, built], check=True)
    job = "from foorl.loop import train; train(2)"
    done = subprocess.run(
        [*WRAP, "--out", tmp_path / "run", "--", sys.executable, "-c", job],
        env=clean_environment(PYTHONPATH=f"{site}:{HERE / 'foorl'}"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
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


def test_it_is_the_page_s_example_and_under_sixty_lines() -> None:
    code = (ADAPTER / "foorl_adapter.py").read_text("utf-8")
    assert dict(examples(page("adapters.md")))["foorl_adapter.py"] == code
    files = [file for file in ADAPTER.iterdir() if file.is_file()]
    assert sum(len(file.read_text("utf-8").splitlines()) for file in files) < 60
