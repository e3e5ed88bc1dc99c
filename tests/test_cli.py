"""The command line: what each command prints, and one sentence with an exit code for bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rltrace.cli import main
from tests.conftest import Record

PROGRAM = """
for n in range(5):
    with rltrace.step(n):
        with rltrace.span("rollout"):
            with rltrace.trajectory(f"t{n}", version=n) as t: t.finish(response_tokens=5, version=n)
        with rltrace.span("train"): rltrace.use(f"t{n}", version=n, tokens=5)
"""


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def run(run_path: Path, record: Record) -> Path:
    record(PROGRAM)
    return run_path


COMMANDS = (
    ("report",),
    ("report", "--json"),
    ("report", "--markdown"),
    ("query", "SELECT count(*) FROM spans"),
    ("info",),
    ("compact",),
    ("timeline",),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_works_on_a_run(run: Path, command: tuple[str, ...]) -> None:
    result = invoke(*command, run)
    assert result.exit_code == 0, result.output
    assert result.output.strip()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_works_on_an_empty_run(run_path: Path, command: tuple[str, ...]) -> None:
    result = invoke(*command, run_path)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code in (0, 3), result.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_refuses_what_is_no_run(tmp_path: Path, command: tuple[str, ...]) -> None:
    result = invoke(*command, tmp_path)
    assert result.exit_code == 4
    assert len(result.output.strip().splitlines()) == 1
    assert "is no run" in result.output


def test_commands_default_to_the_run_that_began_last(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rltrace-runs"
    folder.mkdir()
    run.rename(folder / "by-name-before-all-others")
    for name, started in (("20200101-000000-old", 5), ("z-older", 3), ("zz-broken", None)):
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(json.dumps({"start_real_ns": started}))
    monkeypatch.chdir(tmp_path)
    result = invoke("query", "--csv", "SELECT count(*) AS n FROM steps")
    assert result.output == "n\n5\n"
    listed = json.loads(invoke("ls", "--json").output)
    names = ["zz-broken", "z-older", "20200101-000000-old", "by-name-before-all-others"]
    assert [Path(entry["path"]).name for entry in listed] == names
    assert "unreadable" in listed[0]["problem"]


def test_a_folder_that_does_not_exist_has_no_runs(tmp_path: Path) -> None:
    result = invoke("ls", tmp_path / "nowhere")
    assert result.exit_code == 4
    assert len(result.output.strip().splitlines()) == 1


def test_a_deleted_working_directory_is_no_traceback(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"rmdir {gone}; exec {sys.executable} -m rltrace report"
    done = subprocess.run(
        ["sh", "-c", script], cwd=gone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "Traceback" not in done.stderr


def test_off_a_terminal_a_query_never_breaks_a_line(run: Path) -> None:
    lines = invoke("query", "SELECT * FROM trajectories", run).output.splitlines()
    assert len(lines) == 1 + 5


@pytest.mark.parametrize(
    "options",
    [
        ("--price", "-1"),
        ("--price", "nan"),
        ("--price", "inf"),
        ("--price", "0"),
        ("--price", "1e308"),
        ("--lag-budget", "-2"),
        ("--nonsense",),
        ("--json", "--markdown"),
    ],
)
def test_wrong_options_are_wrong_usage(run: Path, options: tuple[str, ...]) -> None:
    assert invoke("report", *options, run).exit_code == 2


def test_what_json_has_no_word_for_is_null_in_a_query(run: Path) -> None:
    sql = "SELECT 'nan'::double AS a, '-inf'::double AS b, 1.5::double AS c"
    result = invoke("query", sql, run, "--json")
    assert json.loads(result.output) == [{"a": None, "b": None, "c": 1.5}]
    assert "NaN" not in result.output
    assert invoke("query", sql, run, "--json", "--csv").exit_code == 2


def test_an_unknown_option_of_wrap_is_not_taken_for_a_command() -> None:
    assert invoke("wrap", "--bogus", "--", "true").exit_code == 2


def test_info_bears_a_run_file_of_other_types(run: Path) -> None:
    told = {"id": 5, "command": 3, "start_real_ns": "x", "exit_code": "y", "schema_version": 1}
    (run / "run.json").write_text(json.dumps(told))
    assert invoke("info", run).exit_code == 0


def test_a_run_that_is_still_recorded_in_the_background_is_not_compacted(run: Path) -> None:
    """`wrap` has ended; a process that its command left behind has not."""
    (file,) = (run / "process").iterdir()
    told = json.loads(file.read_text())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as left:
        told |= {"pid": left.pid, "start_ns": time.monotonic_ns()}
        file.write_text(json.dumps(told))
        assert invoke("compact", "--delete-segments", run).exit_code == 4
        left.kill()
        left.wait()
    assert invoke("compact", "--delete-segments", run).exit_code == 0


def test_another_process_under_an_old_number_does_not_keep_a_run_open(run: Path) -> None:
    (file,) = (run / "process").iterdir()
    told = json.loads(file.read_text()) | {"pid": os.getppid(), "start_ns": 1}
    file.write_text(json.dumps(told))
    assert invoke("compact", run).exit_code == 0


def test_without_any_run_the_way_to_one_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("report")
    assert result.exit_code == 4
    assert "rltrace wrap -- " in result.output
    assert invoke("ls").exit_code == 0


@pytest.mark.parametrize(
    "query",
    ["SELEC", "SELECT nope FROM spans", "SELECT 1/'x' FROM spans", "SELECT 1; SELECT 2"],
)
def test_a_wrong_query_is_one_sentence(run: Path, query: str) -> None:
    result = invoke("query", query, run)
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("sql", ["SELECT 1 AS n", "@tail_by_step", "from steps", "(SELECT 2 AS n)"])
def test_the_run_stands_before_a_query_or_behind_it(run: Path, sql: str) -> None:
    behind, before = invoke("query", sql, run, "--csv"), invoke("query", run, "--csv", sql)
    assert behind.exit_code == 0, behind.output
    assert before.output == behind.output


@pytest.mark.parametrize("words", [("nowhere", "SELECT 1"), ("SELECT 1", "nowhere")])
def test_a_query_of_a_run_that_is_not_there_names_the_run(words: tuple[str, ...]) -> None:
    result = invoke("query", *words)
    assert (result.exit_code, len(result.output.splitlines())) == (4, 1)
    assert "nowhere does not exist" in result.output


def test_a_run_alone_is_no_query(run: Path) -> None:
    result = invoke("query", run)
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert str(run) in result.output
    assert invoke("query", "SELECT 1", run, "more").exit_code == 2


def test_times_with_a_zone_are_text(run: Path) -> None:
    """As Python's own they would need pytz."""
    sql = "SELECT 1 AS t, to_timestamp(0) AS t, [to_timestamp(0)] AS several"
    (line,) = invoke("query", "--csv", sql, run).output.splitlines()[1:]
    number, moment, several = line.split(",")
    assert number == "1"
    assert moment.startswith(("1970-01-01", "1969-12-31"))
    assert moment in several
    assert invoke("query", sql, run, "--json").exit_code == invoke("query", sql, run).exit_code == 0


def test_named_queries_are_listed_without_a_run(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    listed = json.loads(invoke("query", "--list", "--json").output)
    lines = invoke("query", "--list").output.splitlines()
    assert len(lines) == len(listed) > 20
    for one, line in zip(listed, lines, strict=True):
        assert line.rstrip().split(maxsplit=1) == [one["name"], one["explains"]]


def test_a_query_is_asked_by_its_name_or_from_a_file(run: Path, tmp_path: Path) -> None:
    (row,) = json.loads(invoke("query", "@tail_by_finish", run, "--json").output)
    assert row["trajectories"] == 5
    own = tmp_path / "own.sql"
    own.write_text(invoke("query", "--show", "@tail_by_finish").output)
    assert json.loads(invoke("query", f"@{own}", run, "--json").output) == [row]
    own.write_bytes(b"\xff")
    for path in (own, tmp_path / "none.sql"):
        result = invoke("query", f"@{path}", run)
        assert (result.exit_code, len(result.output.splitlines())) == (4, 1)


@pytest.mark.parametrize(
    "arguments",
    [(), ("@slow",), ("--show", "SELECT 1"), ("--list", "@tail_by_finish"), ("--list", "--csv")],
)
def test_what_is_no_named_query_is_one_sentence(arguments: tuple[str, ...]) -> None:
    result = invoke("query", *arguments)
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1


def test_query_speaks_json_and_csv(run: Path) -> None:
    query = "SELECT step, 'a,b' AS text, NULL AS nothing FROM steps ORDER BY step LIMIT 2"
    assert json.loads(invoke("query", "--json", query, run).output) == [
        {"step": 0, "text": "a,b", "nothing": None},
        {"step": 1, "text": "a,b", "nothing": None},
    ]
    assert invoke("query", "--csv", query, run).output.splitlines()[1] == '0,"a,b",'


def test_compacted_segments_can_be_deleted(run: Path) -> None:
    assert invoke("compact", "--delete-segments", run).exit_code == 0
    assert not list(run.glob("*/*.arrows"))
    assert invoke("query", "--csv", "SELECT count(*) AS n FROM spans", run).output == "n\n15\n"


def test_wrap_without_a_command_is_wrong_usage() -> None:
    result = invoke("wrap")
    assert result.exit_code == 2
    assert "rltrace wrap -- python train.py" in result.output


def test_info_counts_what_is_there(run: Path) -> None:
    found = json.loads(invoke("info", "--json", run).output)
    assert found["rows"]["spans"] == 15
    assert found["rows"]["trajectories"] == 5
    assert found["nodes"] == 1
    assert len(found["processes"]) == 1


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


def test_one_length_of_a_run_is_told_everywhere(run: Path) -> None:
    """What is read of the node after the command has ended does not count."""
    told = json.loads((run / "run.json").read_text())
    told |= {"end_real_ns": told["start_real_ns"] + 12_340_000_000, "exit_code": 0}
    (run / "run.json").write_text(json.dumps(told))
    assert json.loads(invoke("ls", "--json", run.parent).output)[0]["seconds"] == 12.34
    assert json.loads(invoke("info", "--json", run).output)["seconds"] == 12.34
    assert json.loads(invoke("report", "--json", run).output)["run"]["lasted_s"] == 12.34
    for command in (("ls", run.parent), ("info", run), ("report", run)):
        assert "12.3 s" in invoke(*command).output
    assert "lasted 12.3 s" in invoke("report", run).output


def test_a_run_that_cannot_be_read_is_listed_as_such(run: Path) -> None:
    (run / "run.json").write_text('{"id": ')
    (listed,) = json.loads(invoke("ls", "--json", run.parent).output)
    assert (listed["start_real_ns"], listed["seconds"]) == (None, None)
    _, line = invoke("ls", run.parent).output.splitlines()
    assert "1970" not in line
    assert "unreadable: run.json cannot be read" in line


def test_every_run_is_one_line(run: Path) -> None:
    told = json.loads((run / "run.json").read_text())
    told["command"] = ["/a/long/way/to/python", "train.py\n\x1b[31m", "x" * 500]
    (run / "run.json").write_text(json.dumps(told))
    lines = invoke("ls", run.parent).output.splitlines()
    assert len(lines) == 2
    assert "python 'train.py\\n\\x1b[31m'" in lines[1] or "/a/long/way" in lines[1]


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


def test_json_of_one_look(run: Path) -> None:
    told = json.loads(invoke("top", "--once", "--json", run).output)
    assert told["schema"] == "rltrace-live/1"


def test_json_is_exact_and_harmless(run: Path) -> None:
    sql = "SELECT chr(27) || '[31m' || chr(155) || 'é' || chr(8238) AS text"
    written = invoke("query", "--json", sql, run).output
    assert json.loads(written) == [{"text": "\x1b[31m\x9bé\u202e"}]
    assert written.replace("\n", "").isprintable()
    assert "é" in written


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


def test_a_query_that_is_no_text_is_wrong_usage(run: Path) -> None:
    result = invoke("query", "SELECT '\udce9'", run)
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["--help"], {"rich", "numpy", "duckdb", "pyarrow", "pygments"}),
        (["ls", "."], {"numpy", "duckdb", "pyarrow"}),
        (["info", "run"], {"duckdb", "scipy"}),
        (["wrap", "-h"], {"rich", "numpy", "duckdb", "pyarrow"}),
    ],
)
def test_a_small_command_loads_little(run: Path, arguments: list[str], unneeded: set[str]) -> None:
    code = (
        "import sys; from rltrace.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=run.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not unneeded & set(done.stderr.split())
