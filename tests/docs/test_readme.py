"""The loops that the pages show run as they stand there, and the README's commands exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import rltrace
from tests.cli.test_manual import COMMANDS
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
OWN_LOOP = ROOT / "docs/start/own-loop.md"
API = ROOT / "docs/reference/api.md"

HOOKED = """
def generate(): return [1, 2, 3]
def update(tokens): return sum(tokens)
def one_step(): update(generate())
for _ in range(4): one_step()
"""


def loops() -> list[str]:
    """The loop without a word of rltrace in it, and the one with."""
    return re.findall(r"^```python\n(.*?)^```", OWN_LOOP.read_text("utf-8"), re.M | re.S)


def hooks_of(page: Path) -> list[str]:
    """The `--hook` arguments of the page's command."""
    (command,) = re.findall(r"^    (rltrace wrap --hook .*)$", page.read_text("utf-8"), re.M)
    words = shlex.split(command)
    assert words[-3:] == ["--", "python", "loop.py"]
    return words[2:-3]


def wrap(folder: Path, *arguments: str) -> Path:
    command = [sys.executable, "-m", "rltrace", "wrap", "--out", "run", *arguments]
    subprocess.run(command, cwd=folder, check=True, timeout=PATIENCE_S, capture_output=True)
    return folder / "run"


def wrapped(folder: Path, loop: str, *arguments: str) -> list[tuple[str, int]]:
    """Runs a loop; how many spans of each stage that left in how many steps."""
    (folder / "loop.py").write_text(loop)
    run = rltrace.open_run(wrap(folder, *arguments, "--", sys.executable, "loop.py"))
    counts = run.sql("SELECT stage, count(*) FROM spans GROUP BY ALL ORDER BY 1").fetchall()
    steps = run.sql("SELECT count(*) FROM steps").fetchall()
    assert dict(counts)["step"] == steps[0][0]
    return counts


def test_the_loop_is_recorded_without_a_word_of_rltrace_in_it(tmp_path: Path) -> None:
    counts = wrapped(tmp_path, loops()[0], *hooks_of(OWN_LOOP))
    assert counts == [("reward", 160), ("rollout", 20), ("step", 20), ("train", 20)]


def test_the_loop_that_names_its_stages_is_recorded(tmp_path: Path) -> None:
    counts = wrapped(tmp_path, loops()[1])
    assert counts == [("reward", 10), ("rollout", 10), ("step", 10), ("train", 10)]


def test_functions_of_a_script_are_hooked_from_the_command_line(tmp_path: Path) -> None:
    counts = wrapped(tmp_path, HOOKED, *hooks_of(API))
    assert counts == [("rollout", 4), ("step", 4), ("train", 4)]


def test_the_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert set(re.findall(r"^    rltrace (\w+)", text, re.M)) <= {w.split()[0] for w in COMMANDS}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "examples/README.md"])
def test_the_links_of_pages_outside_the_documentation_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / page).read_text("utf-8")):
        assert (ROOT / page).parent.joinpath(target).exists(), target
