"""The build steps that users copy run as they stand, on a small job: the script of any build, and
what the GitHub workflow has to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.slow

CI = Path(__file__).parents[2] / "examples" / "ci"

JOB = """
import rltrace
LAG = {lag}
for n in range(15):
    with rltrace.step(n):
        with rltrace.span("rollout"):
            with rltrace.trajectory(str(n), version=n) as t:
                t.finish(response_tokens=5, version=n)
        with rltrace.span("train"):
            rltrace.use(str(n), version=n + LAG, tokens=5)
"""
# How old the data is differs by the change, and not by the machine.
LIMIT = "--max-regression lag=50%"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A checkout of the base of a change, `before`, and one of the change, `after`."""
    for name, lag in (("before", 1), ("after", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.py").write_text(JOB.format(lag=lag))
        (tmp_path / name / "gate.sh").write_text((CI / "gate.sh").read_text())
    return tmp_path


def shell(command: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RLTRACE_", "GITHUB_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = kept | {"PATH": path, "RUNS": "2", "GATE": LIMIT} | more
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_the_script_makes_a_baseline_passes_what_is_alike_and_fails_what_is_worse(
    workspace: Path,
) -> None:
    baseline = {"BASELINE": str(workspace / "baseline.json")}
    base = shell("sh gate.sh baseline python job.py", workspace / "before", **baseline)
    assert base.returncode == 0, base.stderr
    for folder, code in (("before", 0), ("after", 1)):
        done = shell("sh gate.sh check python job.py", workspace / folder, **baseline)
        assert done.returncode == code, done.stdout + done.stderr
        assert "::" not in done.stdout  # this is no GitHub
        made = len(list((workspace / folder / "rltrace-runs").glob("change-*")))
        assert made == (1 if code == 0 else 3)  # what does not pass is looked at again


def test_the_script_stops_where_it_is_misused_or_the_job_fails(workspace: Path) -> None:
    for arguments in ("", "check", "other python job.py"):
        done = shell(f"sh gate.sh {arguments}", workspace / "before")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    done = shell("sh gate.sh baseline python nothing.py", workspace / "before")
    assert done.returncode not in (0, 1, 3)
    assert not (workspace / "before/baseline.json").exists()


def test_what_the_workflow_runs_holds_a_change_to_its_base(workspace: Path) -> None:
    job = yaml.safe_load((CI / "github.yml").read_text())["jobs"]["gate"]
    summary = workspace / "summary.md"
    here = "${{ github.workspace }}"
    environment = {
        **{name: str(value).replace(here, str(workspace)) for name, value in job["env"].items()},
        "JOB": "python job.py",
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    codes = {}
    for step in job["steps"]:
        if "run" in step and step["name"] != "Install":
            done = shell(step["run"], workspace / step["working-directory"], **environment)
            codes[step["name"]] = done.returncode
    assert codes == {"Baseline": 0, "Gate": 1}
    assert "::error title=rltrace gate" in done.stdout
    assert summary.read_text().startswith("## Gate: regression")
    (upload,) = [s["with"] for s in job["steps"] if "upload-artifact" in s.get("uses", "")]
    for path in upload["path"].split():
        assert list(workspace.glob(path)), path
