"""What `-h` says: every command has a page, and what it advises can be typed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rltrace.cli import main
from rltrace.cli.manual import pages
from tests.cli.conftest import invoke
from tests.hooks.conftest import untraced


def commands(group: click.Group = main, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words after `rltrace`."""
    for name, command in group.commands.items():
        words = f"{before} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands(command, words)
        else:
            yield words, command


COMMANDS = dict(commands())
EXAMPLES = [example for page in pages().values() for example, _ in page["examples"]]


def test_every_command_has_a_page_and_every_page_a_command() -> None:
    assert pages().keys() == COMMANDS.keys()
    see = [Path(__file__).parents[2] / page["see"] for page in pages().values() if "see" in page]
    assert [page for page in see if not page.is_file()] == []


@pytest.mark.parametrize("words", COMMANDS)
def test_help_has_examples_and_exit_codes(words: str) -> None:
    said = invoke(*words.split(), "-h").output
    assert all(part in said for part in ("Usage: ", "Options:", "Examples:", "Exit codes:"))
    assert pages()[words]["examples"][0][0] in said
    options = [one for one in COMMANDS[words].params if isinstance(one, click.Option)]
    assert [one.name for one in options if not one.help] == []
    assert pages()[words].get("options", {}).keys() <= {one.opts[-1] for one in options}


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_command_lines_that_their_command_takes(example: str) -> None:
    typed = shlex.split(example.partition(" > ")[0])[1:]
    words = max((w.split() for w in COMMANDS if typed[: len(w.split())] == w.split()), key=len)
    # Parsed as it would be, and not run: a wrong word or value is an error of click's.
    COMMANDS[" ".join(words)].make_context(
        words[-1], typed[len(words) :], parent=click.Context(main)
    )


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("report ", "rltrace-runs/first"),
        ("import ver", "verl"),
    ],
)
def test_a_shell_completes_runs_and_frameworks(
    small_run: Path, tmp_path: Path, words: str, offered: str
) -> None:
    (tmp_path / "rltrace-runs").mkdir()
    (tmp_path / "rltrace-runs" / "first").symlink_to(small_run)
    program = "from rltrace.cli import main; main(prog_name='rltrace')"
    asked = {"COMP_WORDS": f"rltrace {words}", "COMP_CWORD": str(len(words.split(" ")))}
    asked["_RLTRACE_COMPLETE"] = "bash_complete"
    done = untraced(sys.executable, "-c", program, cwd=tmp_path, **asked)
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == [offered]
