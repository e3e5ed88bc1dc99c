"""Each command answers on one screen, with an exit code that its help names."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from rltrace.testing.inside.cli import exit_codes, pages
from rltrace.testing.inside.report import run_listing as listing
from tests.cli.conftest import invoke, typed
from tests.conftest import MadeOnce
from tests.report.summaries import KINDS as ALL_KINDS
from tests.report.summaries import run_of_kind

MOST_LINES = 45
KINDS = [kind for kind in ALL_KINDS if kind != "many lags"]  # which take long
AT_ONCE = ("colocated", "crashed", "no steps")  # the others in the slow tests
EXAMPLES = Path(__file__).parents[2] / "examples/workloads"
SHAPE = "--gpus 32xH100 --mean-tokens 6000 --cap 32768"
OF_NO_RUN = [
    f"plan --model Qwen/Qwen2.5-32B {SHAPE}",
    f"plan --params 405B {SHAPE}",
    f"plan --model Qwen3-30B-A3B {SHAPE} --env-latency 8s --env-calls 20 --reward-latency 2s "
    "--critic --reference --staleness loose",
    f"plan --params 32B {SHAPE} --sweep gpus=8,32,64",
    *(f"plan EXAMPLES/{path.name}" for path in sorted(EXAMPLES.iterdir())),
    "triage --rollout 360 --reward 80 --train 120 --sync 35",
    "triage --rollout 30 --env 20 --reward 80 --reference 9 --logprob 9 --value 9 --train 120 "
    "--sync 35 --switch 9 --placement async",
    "doctor",
]
OF_A_RUN = [
    *("whatif RUN", "whatif RUN --lever train_speed=2", "compare RUN OTHER", "compare OTHER RUN"),
    *("info RUN", "doctor RUN", "gate RUN --max lag.p99=4 --max step=0.001 --wall rollout"),
    "gate RUN --baseline BASE --max-regression goodput=3% --max-regression step.p95=3%",
    *("report RUN", "top RUN"),
]


@pytest.fixture(scope="session")
def kinds(made_once: MadeOnce) -> Path:
    """A folder with a run of each kind, and a baseline."""

    def make(folder: Path) -> None:
        for kind in KINDS:
            (folder / kind).mkdir()
            run_of_kind(kind, folder / kind)
        done = invoke("baseline", folder / "colocated/run", "-o", folder / "base.json")
        assert done.exit_code == 0, done.output

    return made_once("kinds-of-runs", make)


def fits(line: str, output: str, code: int, columns: int) -> None:
    """The output is at most a screen, and the code one of the command's."""
    lines = output.splitlines()
    known = exit_codes(pages()[line.partition(" ")[0]].get("exits", ()))
    assert str(code) in {one.split()[0] for one in known}, output
    assert not [one for one in lines if cell_len(one) > columns] or len(lines) == 1, output
    assert len(lines) <= MOST_LINES, output
    assert not re.search(r"\bnan\b|\d (ns|us|x)\b", output), output


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("line", OF_NO_RUN)
def test_an_answer_without_a_run_is_one_screen(
    monkeypatch: pytest.MonkeyPatch, line: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    done = typed(line, EXAMPLES=EXAMPLES)
    fits(line, done.output, done.exit_code, columns)


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("async", 100),
        *((kind, 80) for kind in AT_ONCE),
        *(pytest.param(kind, 80, marks=pytest.mark.slow) for kind in KINDS if kind not in AT_ONCE),
    ],
)
def test_an_answer_on_a_run_is_one_screen(
    kinds: Path, monkeypatch: pytest.MonkeyPatch, kind: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    other, base = kinds / "one-step-off/run", kinds / "base.json"
    for line in OF_A_RUN:
        done = typed(line, RUN=kinds / kind / "run", OTHER=other, BASE=base)
        fits(line, done.output, done.exit_code, columns)


@pytest.mark.parametrize("columns", [80, 100])
def test_a_list_of_runs_fits_its_terminal(kinds: Path, columns: int) -> None:
    runs = sorted(path.parent for path in kinds.glob("*/*/run.json"))
    screen = Console(force_terminal=True, width=columns, record=True, file=io.StringIO())
    listing.render(listing.entries(runs), screen)
    lines = screen.export_text().splitlines()
    assert len(lines) == len(runs) + 1
    assert max(map(cell_len, lines)) <= columns


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("reprot", "report"),
        ("whatif RUN --lever placment=async", "placement"),
        ("query RUN @slowest_trajectory", "@slowest_trajectories"),
        ("query RUN 'SELECT * FROM span'", "spans"),
        ("query RUN 'SELECT stpe FROM spans'", "step"),
        ("plan --model Qwen2.5-32 --gpus 8xH100", "Qwen2.5-32B"),
        ("gate RUN --max setp=4", "step"),
        ("gate RUN --wall rolout", "rollout"),
        ("import verll log.jsonl", "verl"),
        ("report 20260101-traim", "20260101-train"),
    ],
)
def test_a_name_that_is_nearly_right_gets_the_right_one(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, meant: str
) -> None:
    (tmp_path / "rltrace-runs").mkdir()
    (tmp_path / "rltrace-runs/20260101-train").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    done = typed(line, RUN=run)
    assert done.exit_code in (2, 4)
    (said,) = done.output.splitlines()
    assert re.search(rf"did you mean .*{re.escape(meant)}\b", said), said
