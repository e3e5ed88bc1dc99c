"""How a command ends and prints, whatever takes its output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.cli.querying import _interruptible
from tests.cli.conftest import invoke
from tests.patience import PATIENCE_S


def test_names_that_no_text_can_hold_are_written_out(tmp_path: Path) -> None:
    """Half a surrogate pair, a terminal's escape, what looks like markup, a name without end."""
    script = tmp_path / "job.py"
    script.write_text(
        "import rltrace\n"
        "with rltrace.step(0):\n"
        "    for name in ('\\ud800lone', '[/x]', '\\x1b[31mred', 'x' * 5000):\n"
        "        with rltrace.span(name):\n"
        "            pass\n"
    )
    run = tmp_path / "run"
    words = [sys.executable, "-m", "rltrace"]
    subprocess.run(
        [*words, "wrap", "--out", run, "--", sys.executable, script],
        check=True,
        capture_output=True,
    )
    for command in (["info"], ["info", "--json"], ["report"], ["report", "--json"]):
        done = subprocess.run([*words, *command, run], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
    told = subprocess.run([*words, "info", run], capture_output=True, check=True).stdout.decode()
    assert "\\ud800lone" in told
    assert "[/x]" in told
    assert "\x1b[31m" not in told
    assert max(map(len, told.splitlines())) < 1000


@pytest.mark.parametrize(
    "arguments",
    [
        ("--bogus",),
        ("reprot",),
        ("report", "--jsno"),
        ("top", "--interval", "soon"),
        ("info", "a", "b"),
        ("import", "verl"),
        ("compare", "a"),
        ("report", ""),
        ("export", "nothing"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_one_sentence_like_any_other(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("rltrace: ")
    assert line[len("rltrace: ")].islower() or not line[len("rltrace: ")].isalpha()
    assert not line.endswith(".")


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
    told = json.loads((run / "run.json").read_text())
    told["command"] = ["::stop-commands::a", "##[error]b", "long " * 30 + "::set-output name=a::b"]
    (run / "run.json").write_text(json.dumps(told))
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
    assert "\n::stop-commands::a" in invoke("report", run).output


@pytest.mark.parametrize("sink", ["| true", "> /dev/full", ">&-"])
@pytest.mark.parametrize("command", ["report", "ls", "query 'SELECT 1'"])
def test_an_output_that_nobody_takes_is_no_traceback(run: Path, command: str, sink: str) -> None:
    words = f"{sys.executable} -m rltrace {command}"
    target = run.parent if command == "ls" else run
    script = f"{words} {target} {sink}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert "Traceback" not in done.stderr
    full = sink == "> /dev/full"
    assert done.returncode == (4 if full else 0)
    assert done.stderr == ("rltrace: no space left on device\n" if full else "")


def test_an_encoding_without_our_signs_gets_plain_ones(run: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rltrace", "report", run],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    text = done.stdout.decode("ascii")
    assert "t_R" in text
    assert "\\u" not in text
    told = subprocess.run(
        [sys.executable, "-m", "rltrace", "query", "--json", "SELECT 'é' AS a", run],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert json.loads(told.stdout) == [{"a": "é"}]


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
    done = subprocess.run(
        [sys.executable, "-c", code, "query", sql, run],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
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
    with pytest.raises(KeyboardInterrupt):
        _interruptible(opened, work)
    assert not answers
