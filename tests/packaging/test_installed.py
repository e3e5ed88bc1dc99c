"""What is installed from the wheel works by itself, under each Python that it promises."""

from __future__ import annotations

import json
import subprocess
import tarfile
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

from tests.packaging.conftest import ROOT, Installed

LOOP = """
import time
import rltrace
for n in range(5):
    with rltrace.step(n):
        with rltrace.span("rollout", version=n):
            with rltrace.trajectory(f"t{n}", version=n) as t:
                time.sleep(0.01)
                t.finish("stop", response_tokens=7, version=n)
        with rltrace.span("train", tokens=7):
            rltrace.use(f"t{n}", version=n, tokens=7)
"""

FOLDERS = ["rltrace", "dashboards", "tests", "benchmarks", "examples", "docs", "pins"]
FOLDERS += [".ci", "Makefile"]
MOST_DEPENDENCIES = 8


def test_the_core_asks_for_few_packages(metadata: Distribution) -> None:
    core = [one for one in metadata.requires or [] if "extra ==" not in one]
    assert 0 < len(core) <= MOST_DEPENDENCIES, core


def test_the_distributions_hold_what_the_repository_tracks(built: Path) -> None:
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        held = {name.partition("/")[2] for name in packed.getnames()}
    git = ["git", "ls-files", *FOLDERS]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    # Unpacked from an archive it is no repository, and the sources are what is there.
    sources = (p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))
    expected = listed.stdout.splitlines() or [str(p.relative_to(ROOT)) for p in sources]
    assert expected
    assert set(expected) <= held
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed_too:
        held = set(packed_too.namelist())
    assert {f"rltrace/{name}" for name in expected if name.startswith("dashboards/")} <= held


def test_a_job_is_traced_and_every_reader_reads_it(installed: Installed, tmp_path: Path) -> None:
    _check_a_job(installed, tmp_path)


def test_so_it_is_with_the_lowest_versions_that_are_promised(
    lowest: Installed, tmp_path: Path
) -> None:
    _check_a_job(lowest, tmp_path)
    lowest.run("rltrace", "whatif", "run", cwd=tmp_path)
    lowest.run("rltrace", "triage", "--rollout", "360", "--train", "120")
    for query in json.loads(lowest.run("rltrace", "query", "--list", "--json")):
        lowest.run("rltrace", "query", "run", query["name"], cwd=tmp_path)


def _check_a_job(installed: Installed, tmp_path: Path) -> None:
    """Traces a loop in `tmp_path`, and reads its run in every way, first and last form."""
    (tmp_path / "loop.py").write_text(LOOP)
    python = str(installed.folder / "bin" / "python")
    installed.run("rltrace", "wrap", "--out", "run", "--", python, "loop.py", cwd=tmp_path)
    for _ in ("as segments", "as Parquet"):
        said = json.loads(installed.run("rltrace", "report", "run", "--json", cwd=tmp_path))
        assert said["steps"]["complete"] == 5, said["steps"]
        sql = "SELECT sum(response_tokens)::int AS tokens, count(*) AS n FROM trajectories"
        answer = json.loads(installed.run("rltrace", "query", "run", sql, "--json", cwd=tmp_path))
        assert answer == [{"tokens": 35, "n": 5}]
        installed.run("rltrace", "timeline", "run", "-o", "run.pftrace", cwd=tmp_path)
        installed.run("rltrace", "report", "run", "--html", "run.html", cwd=tmp_path)
        installed.run("rltrace", "compact", "run", "--delete-segments", cwd=tmp_path)


def test_nothing_conflicts_and_pytest_is_not_brought(installed: Installed) -> None:
    installed.run("python", "-m", "pip", "check")
    listed = json.loads(installed.run("python", "-m", "pip", "list", "--format", "json"))
    assert not {"torch", "ray", "pytest", "matplotlib"} & {one["name"] for one in listed}


def test_weights_move_between_processes_with_the_extra_alone(
    installed: Installed, built: Path, tmp_path: Path
) -> None:
    [wheel] = built.glob("*.whl")
    installed.run("python", "-m", "pip", "install", "--quiet", f"{wheel}[sync]")
    (tmp_path / "move.py").write_text(
        "import subprocess, sys, numpy as np\n"
        "from rltrace.sync import Publisher, Subscriber, layout_of\n"
        "where = 'shm://packaging-' + sys.argv[1]\n"
        "if len(sys.argv) > 2:\n"
        "    held = {'w': np.zeros(1000, np.float32)}\n"
        "    Subscriber.connect(where).pull_into(held)\n"
        "    print(held['w'].sum())\n"
        "else:\n"
        "    weights = {'w': np.full(1000, 2, np.float32)}\n"
        "    with Publisher.open(layout_of(weights), where=where) as publisher:\n"
        "        publisher.publish(weights, 1)\n"
        "        subprocess.run([sys.executable, __file__, sys.argv[1], 'pull'], check=True)\n"
    )
    said = installed.run("python", "move.py", str(hash(tmp_path) % 10**9), cwd=tmp_path)
    assert said.split()[-1] == "2000.0"


def test_uninstalling_leaves_nothing_behind(installed: Installed) -> None:
    """The last test of an environment: its .pth would be run by every Python of it."""
    installed.run("python", "-m", "pip", "uninstall", "--quiet", "-y", "rltrace-toolkit")
    left = [p for p in installed.folder.rglob("*rltrace*") if "__pycache__" not in p.parts]
    assert left == []
    assert installed.run("python", "-c", "print('fine')") == "fine\n"
