"""Paths of what is no file: every command that reads one says so, and waits for nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rltrace.testing.inside.trace import open_given, text_given

_INVOKE = """
import json, sys
from click.testing import CliRunner
from rltrace.cli import main
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(main, words)
    print(json.dumps([done.exit_code, done.output]), flush=True)
"""
_HANGS_S = 240  # a reader of a pipe without a writer waits for ever


def invoked(commands: list[list[str]]) -> list[tuple[int, str]]:
    """The exit code and the output of each, of one process that may not wait for ever."""
    done = subprocess.run(
        [sys.executable, "-c", _INVOKE, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=_HANGS_S,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(commands), done.stderr
    return [(code, output) for code, output in found]


def commands(path: str, run: Path) -> list[list[str]]:
    """Those that read a file of the user's, with `path` in its place."""
    return [
        *(["import", name, path] for name in ("verl", "trl", "openrlhf", "miles", "areal")),
        *(["import", name, path] for name in ("torchtitan", "otlp")),
        ["import", "chrome", str(run / "run.json"), "--map", path],
        ["plan", path],
        ["whatif", "--stages", path],
        ["gate", str(run), "--baseline", path],
        ["query", f"@{path}", str(run)],
        ["timeline", str(run), "--torch-profile", path],
    ]


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Path, str]:
    """What is no file, and what it is."""
    pipe, bound, device = (tmp_path / f"{kind}.sql" for kind in ("pipe", "bound", "device"))
    os.mkfifo(pipe)
    monkeypatch.chdir(tmp_path)  # a socket's path has a hundred bytes
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(bound.name)
    device.symlink_to("/dev/zero")
    return {pipe: "a pipe", bound: "a socket", device: "a device"}


def test_what_is_no_file_is_one_sentence_and_as_bad_as_a_file_that_is_not_there(
    tmp_path: Path, run: Path, others: dict[Path, str]
) -> None:
    missing = invoked(commands(str(tmp_path / "none.sql"), run))
    for path, kind in others.items():
        asked = commands(str(path), run)
        for words, (code, output), (expected, _) in zip(
            asked, invoked(asked), missing, strict=True
        ):
            assert f"it is {kind}, not a file" in output, (words, output)
            assert (code, len(output.splitlines())) == (expected, 1), (words, output)


def test_a_text_that_is_a_hole_is_not_read(tmp_path: Path, run: Path) -> None:
    hole = tmp_path / "hole.sql"
    hole.touch()
    os.truncate(hole, 8 << 30)
    asked = [
        ["whatif", "--stages", str(hole)],
        ["plan", str(hole)],
        ["query", f"@{hole}", str(run)],
    ]
    for words, (code, output) in zip(asked, invoked(asked), strict=True):
        assert "larger than 256 MiB" in output, (words, output)
        assert (code in (2, 4), len(output.splitlines())) == (True, 1), (words, output)


def test_a_pipe_of_the_shell_s_is_read_to_its_end() -> None:
    end, begin = os.pipe()
    os.write(begin, "[a]\nb = 'ü'\n".encode())
    os.close(begin)
    try:
        assert text_given(f"/dev/fd/{end}") == "[a]\nb = 'ü'\n"
        with pytest.raises(OSError, match="it is a pipe, not a file"):  # it is not there again
            open_given(f"/dev/fd/{end}")
    finally:
        os.close(end)
