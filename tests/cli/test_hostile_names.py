"""What a job calls its parts is text: a terminal obeys none of it, a page shows none of it as its
own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.hostile import hostile_run

_COMMANDS = (
    "report",
    "report --markdown",
    "info",
    "ls",
    "top --once",
    "whatif",
    "compare RUN",
    "export prometheus --once",
    "query|SELECT * FROM spans",
    "query|SELECT * FROM processes|--csv",
    "query|PIVOT spans ON name USING count(*)",
    "query|PIVOT spans ON name USING count(*)|--csv",
    "query|SELECT * FROM nothing_like_this",
    "gate --max lag.p99=4",
)

_SHELL = """
import sys
from rltrace.cli import main
for line in sys.argv[2:]:
    words = line.split("|") if "|" in line else line.split()
    words = [sys.argv[1] if word == "RUN" else word for word in words]
    folder = [] if words[0] == "ls" else [sys.argv[1]]
    print("=====", line, flush=True)
    try:
        main([*words, *folder], prog_name="rltrace")
    except SystemExit as ended:
        print("-----", ended.code, flush=True)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `hostile_run`."""
    return hostile_run(tmp_path_factory.mktemp("rltrace-runs"))


def on_a_terminal(*lines: str, run: Path) -> str:
    """What commands put on a terminal, stdout and stderr together."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "120", "NO_COLOR": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", _SHELL, str(run), *lines],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        cwd=run.parent.parent,
    ) as shell:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # its other end is closed
                break
            parts.append(part)
        shell.wait(timeout=300)
    os.close(ours)
    return b"".join(parts).decode("utf-8", "replace")


def test_no_name_is_obeyed_by_a_terminal(run: Path) -> None:
    shown = on_a_terminal(*_COMMANDS, run=run)
    assert "Traceback" not in shown, shown
    assert shown.count("=====") == len(_COMMANDS)
    for command, _, said in (part.partition("\r\n") for part in shown.split("=====")[1:]):
        obeyed = re.findall(
            r"[^\n\x20-\x7e\xa0-\u2027\u2030-\u2065\u2070-\uffff]", said.replace("\r\n", "\n")
        )
        assert obeyed == [], (command, said[:2000])
        assert "\u202e" not in said, command
        codes = re.findall(r"----- (\d+)", said)
        assert codes, command
        assert codes[0] in "0123", (command, said)
