"""The README's loop runs as it stands there, and its commands do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rltrace
from tests.cli.test_manual import COMMANDS
from tests.patience import PATIENCE_S

README = Path(__file__).parents[2] / "README.md"
API = README.parent / "docs" / "reference" / "api.md"

HOOKED = """
def generate(): return [1, 2, 3]
def update(tokens): return sum(tokens)
def one_step(): update(generate())
for _ in range(4): one_step()
"""


def wrap(folder: Path, *arguments: str) -> Path:
    command = [sys.executable, "-m", "rltrace.cli", "wrap", "--out", "run", *arguments]
    subprocess.run(command, cwd=folder, check=True, timeout=PATIENCE_S, capture_output=True)
    return folder / "run"


def test_the_loop_of_the_readme_is_recorded(tmp_path: Path) -> None:
    (loop,) = re.findall(r"^```python\n(.*?)^```", README.read_text("utf-8"), re.M | re.S)
    (tmp_path / "loop.py").write_text(loop)
    run = rltrace.open_run(wrap(tmp_path, "--", sys.executable, "loop.py"))
    found = run.sql("SELECT step, stage, count(*) FROM spans WHERE stage <> 'step' GROUP BY ALL")
    expected = [(n, stage, 1) for n in range(3) for stage in ("reward", "rollout", "train")]
    assert sorted(found.fetchall()) == expected


@pytest.mark.parametrize("document", [README, API], ids=lambda path: path.name)
def test_functions_of_a_script_are_hooked_from_the_command_line(
    tmp_path: Path, document: Path
) -> None:
    hooks = re.findall(r'--hook "(\S+)"', document.read_text("utf-8"))
    assert len(hooks) == 3
    (tmp_path / "loop.py").write_text(HOOKED)
    arguments = [word for hook in hooks for word in ("--hook", hook)]
    run = rltrace.open_run(wrap(tmp_path, *arguments, "--", sys.executable, "loop.py"))
    counts = run.sql("SELECT stage, count(*) FROM spans GROUP BY ALL ORDER BY 1").fetchall()
    assert counts == [("rollout", 4), ("step", 4), ("train", 4)]
    assert run.sql("SELECT list(step ORDER BY step) FROM steps").fetchall() == [([0, 1, 2, 3],)]


def test_the_commands_of_the_readme_exist() -> None:
    text = README.read_text("utf-8")
    assert set(re.findall(r"^    rltrace (\w+)", text, re.M)) <= {w.split()[0] for w in COMMANDS}
