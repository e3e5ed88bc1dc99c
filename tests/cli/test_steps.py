"""`--steps` and `--last`: a run as if it had some of its steps only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rltrace.testing.inside.trace import CANNOT_TELL, WRONG_USAGE, Stage
from rltrace.testing.made import process, run_of
from tests.cli.conftest import invoke


def steps_of(*arguments: object) -> list[int]:
    done = invoke("query", *arguments, "SELECT step FROM steps ORDER BY step", "--json")
    assert done.exit_code == 0, done.output
    return [row["step"] for row in json.loads(done.stdout)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--steps", "2"], [2]),
        (["--steps", "1..3"], [1, 2, 3]),
        (["--steps", "3.."], [3, 4]),
        (["--steps", "..1"], [0, 1]),
        (["--steps", "4..900"], [4]),
        (["--last", "2"], [3, 4]),
        (["--last", "900"], [0, 1, 2, 3, 4]),
        ([], [0, 1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("compacted", [False, True])
def test_which_steps_there_are(
    run: Path, options: list[str], expected: list[int], compacted: bool
) -> None:
    if compacted:
        assert invoke("compact", run).exit_code == 0
    assert steps_of(run, *options) == expected


def test_each_view_is_of_these_steps(run: Path, tmp_path: Path) -> None:
    report = json.loads(invoke("report", run, "--steps", "1..2", "--json").stdout)
    assert [one["step"] for one in report["steps"]["times"]] == [1, 2]
    assert report["run"]["part"]
    assert "2 steps (1 to 2, no others)" in invoke("report", run, "--steps", "1..2").output
    slices = {}
    for options in ((), ("--steps", "1..2")):
        done = invoke("timeline", run, "-o", tmp_path / "t.pftrace", "--json", *options)
        slices[options] = json.loads(done.stdout)["slices"]
    assert 0 < slices["--steps", "1..2"] < slices[()]
    done = invoke("export", "otlp", run, "-o", tmp_path / "o.jsonl", "--last", 1, "--json")
    whole = invoke("export", "otlp", run, "-o", tmp_path / "o.jsonl", "--json")
    counts = [json.loads(one.stdout)["spans"]["spans"] for one in (done, whole)]
    assert 0 < counts[0] < counts[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", "9..5"], "the last step comes before the first"),
        (["--steps", "x"], "give a step or a range"),
        (["--steps", ".."], "give a step or a range"),
        (["--steps", "7..8"], "has none of these steps: it has 0 to 4"),
        (["--steps", "1", "--last", "2"], "give one of --steps and --last"),
        (["--last", "0"], "0 is not in the range"),
    ],
)
def test_what_cannot_be_chosen_is_said(run: Path, options: list[str], said: str) -> None:
    done = invoke("report", run, *options)
    assert done.exit_code == WRONG_USAGE
    assert said in " ".join(done.output.split())


OF_STEPS = [
    ("report",),
    ("query", "SELECT 1"),
    ("timeline", "-o", "{out}"),
    ("whatif",),
    ("whatif", "--lever", "placement=async"),
    ("export", "otlp", "-o", "{out}"),
]
NEED_STEPS = [
    ("compare", "{run}"),
    ("gate", "--max", "step=9"),
    ("baseline", "-o", "{out}"),
    ("whatif",),
    ("whatif", "--lever", "placement=async"),
    ("plan", "--from-run"),
]


@pytest.mark.parametrize("is_empty", [False, True], ids=["other steps", "no steps"])
@pytest.mark.parametrize("words", OF_STEPS, ids=" ".join)
def test_steps_that_a_run_does_not_have_are_wrong_usage(
    run: Path, tmp_path: Path, words: tuple[str, ...], is_empty: bool
) -> None:
    of = without_steps(tmp_path) if is_empty else run
    asked = (word.format(out=tmp_path / "out") for word in words)
    done = invoke(*asked, of, "--steps", "7..8")
    assert done.exit_code == WRONG_USAGE, done.output
    assert len(done.output.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [*NEED_STEPS, *((*words, "--last", "2") for words in OF_STEPS)],
    ids=" ".join,
)
def test_a_run_without_a_complete_step_cannot_tell(tmp_path: Path, words: tuple[str, ...]) -> None:
    of = without_steps(tmp_path)
    last = [*words].index("--last") if "--last" in words else len(words)
    asked = [word.format(run=of, out=tmp_path / "out") for word in words]
    done = invoke(*asked[:last], of, *asked[last:])
    assert done.exit_code == CANNOT_TELL, done.output
    assert len(done.output.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def without_steps(folder: Path) -> Path:
    """A run in which nobody said what a step is."""
    spans = [(Stage.ROLLOUT, 0, 5), (Stage.TRAIN, 5, 9)]
    return run_of(folder / "stepless", process("learner", *spans)).path
