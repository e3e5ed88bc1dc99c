"""How a command ends and prints, whatever takes its output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.cli.querying import _interruptible
from rltrace.testing.inside.trace import INTERRUPTED, RltraceError, update_run_json
from tests.cli.conftest import invoke
from tests.conftest import Record
from tests.hooks.conftest import untraced
from tests.report.hostile import hostile_run


def test_names_that_no_text_can_hold_are_written_out(run_path: Path, record: Record) -> None:
    """Half a surrogate pair, a terminal's escape, what looks like markup, a name without end."""
    record("""
with rltrace.step(0):
    for name in ('\\ud800lone', '[/x]', '\\x1b[31mred', 'x' * 5000):
        with rltrace.span(name): pass
""")
    for command in (["info"], ["info", "--json"], ["report"], ["report", "--json"]):
        assert invoke(*command, run_path).exit_code == 0
    told = invoke("info", run_path).output
    assert "\\ud800lone" in told
    assert "[/x]" in told
    assert "\x1b[31m" not in told
    assert max(map(len, told.splitlines())) < 1000


def test_json_is_exact_and_harmless(run: Path) -> None:
    sql = "SELECT chr(27) || '[31m' || chr(155) || 'é' || chr(8238) AS text"
    written = invoke("query", "--json", sql, run).output
    assert json.loads(written) == [{"text": "\x1b[31m\x9bé\u202e"}]
    assert written.replace("\n", "").isprintable()
    assert "é" in written


def test_what_a_job_is_called_commands_nothing_in_the_log_of_a_build(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GitHub obeys lines that begin with `::`, and `##[` wherever it stands."""
    command = ["::stop-commands::a", "##[error]b", "long " * 30 + "::set-output name=a::b"]
    update_run_json(str(run), command=command)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    text = "SELECT '  ::error::a' AS a UNION ALL SELECT 'b ##[warning]c ::d'"
    gate = ("gate", run, "--max", "lag.p99=0", "--github")
    for words in (("report", run), ("info", run), ("query", run, text), gate):
        lines = invoke(*words).output.splitlines()
        assert len(lines) > 2, words
        assert not [x for x in lines if x.strip().startswith("::") and words != gate], words
        assert not [x for x in lines if "##[" in x], words
    assert "::d" in invoke("query", run, text).output
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert "::stop-commands::a" in invoke("report", "--full", run).output


@pytest.mark.parametrize("sink", ["| true", "> /dev/full", ">&-"])
@pytest.mark.parametrize("command", ["report", "ls", "query 'SELECT 1'"])
def test_an_output_that_nobody_takes_is_no_traceback(run: Path, command: str, sink: str) -> None:
    words = f"{sys.executable} -m rltrace {command}"
    target = run.parent if command == "ls" else run
    script = f"{words} {target} {sink}; exit ${{PIPESTATUS[0]}}"
    done = untraced("bash", "-c", script)
    full = sink == "> /dev/full"
    assert done.returncode == (4 if full else 0)
    assert done.stderr == ("rltrace: no space left on device\n" if full else "")


def test_an_encoding_without_our_signs_gets_plain_ones(run: Path) -> None:
    def told(*words: str) -> str:
        program = (sys.executable, "-m", "rltrace", *words, str(run))
        said = untraced(*program, PYTHONIOENCODING="ascii").stdout
        assert said.isascii()
        return said

    text = told("report", "--full")
    assert "t_R" in text
    assert "\\u" not in text
    assert json.loads(told("query", "--json", "SELECT 'é' AS a")) == [{"a": "é"}]


def test_ctrl_c_ends_a_query_without_a_traceback(run: Path) -> None:
    """While DuckDB works, which takes the signal itself."""
    sql = "SELECT count(*) FROM range(1000000000000) a WHERE hash(a.range) = 1"
    code = (
        "import os, signal, sys, threading, duckdb\n"
        "from rltrace.cli import main\n"
        "for after_s in (5, 20, 60):  # on a busy machine the first comes before the query\n"
        "    later = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))\n"
        "    later.daemon = True\n"
        "    later.start()\n"
        "main(sys.argv[1:])"
    )
    done = untraced(sys.executable, "-c", code, "query", sql, str(run))
    assert done.stderr.strip() == "rltrace: interrupted"
    assert done.returncode == 130


def test_ctrl_c_before_duckdb_is_at_it_ends_the_query_too(run: Path) -> None:
    """While segments are read, say."""
    opened = rltrace.open_run(run)
    answers: list[Any] = []

    def work() -> None:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        sql = "SELECT count(*) FROM range(1000000000) a WHERE hash(a.range) = 1"
        answers.append(opened.sql(sql).fetchall())

    opened.sql("FROM steps").fetchall()
    with pytest.raises(RltraceError) as raised:
        _interruptible(opened, work, None)
    assert raised.value.exit_code == INTERRUPTED
    assert not answers


@pytest.mark.parametrize("lacking", ["xxhash", "zstandard"])
def test_what_sync_lacks_is_said_in_one_sentence(lacking: str) -> None:
    program = (
        f"import sys; sys.modules[{lacking!r}] = None;"
        "from rltrace.cli import main; main(['sync', 'serve'], prog_name='rltrace')"
    )
    done = untraced(sys.executable, "-c", program)
    (line,) = done.stderr.splitlines()
    install = "pip install 'rltrace-toolkit[sync]'"
    assert (done.returncode, line.endswith(install)) == (4, True)
    assert lacking in line


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


def test_no_name_is_obeyed_by_a_terminal(tmp_path: Path) -> None:
    """What a job calls its parts is text: a terminal obeys none of it, a page shows none of it as
    its own."""
    (tmp_path / "rltrace-runs").mkdir()
    run = hostile_run(tmp_path / "rltrace-runs")
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


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
@pytest.mark.parametrize("line", ["report RUN", "gate RUN --wall rollout", "query RUN @slow --csv"])
def test_a_closed_stream_changes_no_exit_code(small_run: Path, line: str, closed: str) -> None:
    command = f"{sys.executable} -m rltrace {line.replace('RUN', str(small_run))}"
    codes = [
        subprocess.run(f"{command} {to}", shell=True, check=False, capture_output=True).returncode
        for to in ("", closed)
    ]
    assert codes[0] == codes[1] < 4
