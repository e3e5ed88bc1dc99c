"""Every command on every kind of run, and on what is none."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result

from rltrace.testing.inside.trace import node_id, update_run_json
from tests.cli.conftest import invoke, typed
from tests.hooks.conftest import untraced

READERS = [
    *("report RUN", "report RUN --json", "report RUN --markdown", "whatif RUN", "compare RUN RUN"),
    *("query RUN @tail_by_step", "timeline RUN", "export prometheus RUN --once"),
    *("top RUN", "top RUN --json", "compact RUN --delete-segments", "gate RUN --max lag.p99=4"),
    *("baseline RUN -o RUN/b.json", "experiment RUN --dry-run", "plan --from-run RUN"),
]
"""Every command that reads a run and refuses one of which nothing can be read."""


@pytest.mark.parametrize("line", [*READERS[:-2], "info RUN"])
def test_every_command_works_on_a_run(run: Path, line: str) -> None:
    result = typed(line, RUN=run)
    few_steps = (3,) if line.startswith("gate") else ()  # where the first is taken for warm-up
    assert result.exit_code in (0, *few_steps), result.output
    assert result.output.strip()


@pytest.mark.parametrize("line", [*READERS, "info RUN"])
def test_every_command_works_on_an_empty_run(run_path: Path, line: str) -> None:
    assert typed(line, RUN=run_path).exit_code in (0, 3)


@pytest.mark.parametrize("line", [*READERS, "info RUN", "ls RUN/nowhere", "doctor RUN"])
def test_every_command_refuses_what_is_no_run(tmp_path: Path, line: str) -> None:
    result = typed(line, RUN=tmp_path)
    assert result.exit_code == 4
    (said,) = result.output.splitlines()
    assert str(tmp_path) in said


@pytest.fixture
def over(run: Path) -> Path:
    """A run whose end is recorded."""
    update_run_json(str(run), end_real_ns=1_800_000_000_000_000_000, exit_code=0)
    return run


def test_a_run_whose_files_are_random_bytes_is_unreadable(over: Path) -> None:
    for file in over.glob("*/*.arrows"):
        file.write_bytes(bytes(range(255, -1, -1)) * 8)
    files = sorted(over.glob("*/*"))
    [(code, said)] = {(done.exit_code, done.output) for done in refusals(over)}
    assert (code, len(said.splitlines())) == (4, 1)
    assert "the files of spans, trajectories, uses" in said
    assert sorted(over.glob("*/*")) == files
    unreadable = said.partition(": ")[2].strip()
    assert unreadable in " ".join(invoke("info", over).output.split())
    assert invoke("doctor", over).exit_code == 1


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_of_which_only_its_description_is_left_is_missing_data(
    run: Path, ended: bool
) -> None:
    """Whether its end was recorded or nobody is left who could."""
    died = {"command_pid": 2**30, "wrap_pid": 2**30, "node": node_id()}
    update_run_json(str(run), **({"end_real_ns": 1_800_000_000_000_000_000} if ended else died))
    for file in run.glob("*/*"):
        file.unlink()
    [(code, said)] = {(done.exit_code, done.output) for done in refusals(run)}
    assert (code, len(said.splitlines())) == (4, 1)
    assert "no process and no row" in said
    assert "no process and no row" in " ".join(invoke("info", run).output.split())


def refusals(run: Path) -> list[Result]:
    return [typed(line, RUN=run) for line in READERS]


def test_a_run_that_has_just_begun_is_not_said_to_have_lost_its_files(run: Path) -> None:
    alive = {"command_pid": os.getpid(), "start_real_ns": time.time_ns(), "node": node_id()}
    update_run_json(str(run), **alive)
    for file in run.glob("*/*"):
        file.unlink()
    assert invoke("report", run).exit_code == 0
    assert "no process and no row" not in invoke("info", run).output


def test_a_run_of_which_one_table_is_damaged_is_told_as_far_as_it_goes(run: Path) -> None:
    for file in run.glob("uses/*.arrows"):
        file.write_bytes(b"\xfe" * 2048)
    result = invoke("report", run)
    assert result.exit_code == 0
    assert "(uses)" in " ".join(result.output.split())


def test_a_deleted_working_directory_is_no_traceback(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = untraced("sh", "-c", f"rmdir {gone}; exec {sys.executable} -m rltrace report", cwd=gone)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr


def test_a_run_is_kept_open_by_a_process_of_its_own_and_by_no_other_of_its_number(
    run: Path,
) -> None:
    """`wrap` has ended; a process that its command left behind has not."""
    (file,) = (run / "process").iterdir()
    told = json.loads(file.read_text())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as left:
        file.write_text(json.dumps({**told, "pid": left.pid, "start_ns": time.monotonic_ns()}))
        assert invoke("compact", "--delete-segments", run).exit_code == 2
        assert not (run / "parquet").exists()  # nothing is done by halves
        assert "the job goes on" in invoke("compact", run).output
        left.kill()
        left.wait()
    file.write_text(json.dumps({**told, "pid": os.getpid(), "start_ns": 1}))
    assert invoke("compact", "--delete-segments", run).exit_code == 0


def test_compacted_segments_can_be_deleted(run: Path) -> None:
    assert invoke("compact", "--delete-segments", run).exit_code == 0
    assert not list(run.glob("*/*.arrows"))
    assert "are kept" not in invoke("compact", run).output
    assert invoke("query", "--csv", "SELECT count(*) AS n FROM spans", run).output == "n\n15\n"


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
    done = untraced(sys.executable, "-c", code, *arguments, cwd=run.parent)
    assert done.returncode == 0, done.stderr
    assert not unneeded & set(done.stderr.split())


MOST_MODULES = 100
"""Of ours that a report of a small run enters; an `__init__` that only has a docstring is none."""

_ENTERED = """
import sys
entered = set()
sys.setprofile(lambda frame, *_: entered.add(frame.f_globals.get("__name__")))
from rltrace.entry import main
try: main()
finally:
    sys.setprofile(None)
    ours = [name for name in entered if name and name.split(".")[0] == "rltrace"]
    print(*(sys.modules[name].__file__ for name in ours), sep="\\n", file=sys.stderr)
"""


def test_a_report_enters_few_modules(run: Path) -> None:
    done = untraced(sys.executable, "-c", _ENTERED, "report", str(run))
    assert done.returncode == 0, done.stderr
    code = {file: ast.parse(Path(file).read_text("utf-8")).body for file in done.stderr.split()}
    entered = [file for file, body in code.items() if any(not is_text(one) for one in body)]
    assert 50 < len(entered) <= MOST_MODULES, sorted(entered)


def is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
