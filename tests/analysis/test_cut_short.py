"""Recording that stopped on a full disk: what is judged are the steps that were whole by then."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.analysis.cut_short import whole_steps
from rltrace.testing.inside.analysis import (
    Asked,
    Constants,
    Summary,
    alarms,
    compare,
    narrow,
    series_of,
    summarize,
    workload_of,
)
from rltrace.testing.inside.report import findings, html, run_lines, verdict
from rltrace.testing.inside.trace import PROBLEMS, Run, Stage, compact, delete_segments
from rltrace.testing.made import at, process, run_of

Copy = Callable[[int], Path]
NUMBER = re.compile(r"\d+\.\d+(e[+-]\d+)?")


@pytest.fixture
def stopped_in(synthetic: Callable[..., Any], tmp_path: Path) -> Copy:
    """`stopped_in(7)`: a run one of whose processes stopped recording in the middle of step 7."""

    def copy(step: int) -> Path:
        run, truth = synthetic()
        path = Path(shutil.copytree(run.path, tmp_path / "run"))
        of = next(s for s in truth.steps if s.step == step)
        who = next(p.who for p in run.processes if p.role == "rollout")
        stop(path, who, (of.start_ns + of.end_ns) // 2)
        return path

    return copy


def stop(run: Path, who: str, real_ns: int) -> None:
    line = {"what": "recording-stopped", "real_ns": real_ns, "detail": "No space left on device"}
    with (run / PROBLEMS / f"{who}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def judged(run: Run) -> tuple[Any, ...]:
    """What a summary says of the steps, as text: NaN is no number that equals itself. Of nine
    digits: two threads add numbers up in any order."""
    found: Summary = summarize(run)
    of = (found.steps, found.stages, found.verdict, found.tail, found.staleness, found.goodput)
    said = map(repr, (*of, found.binding, found.syncs, found.signal, found.reward))
    return tuple(NUMBER.sub(lambda one: f"{float(one[0]):.9g}", text) for text in said)


def test_it_is_judged_as_its_whole_steps_are(
    synthetic: Callable[..., Any], stopped_in: Copy
) -> None:
    whole, _ = synthetic()
    narrow(whole, Asked(0, 6))
    run = rltrace.open_run(stopped_in(7))
    assert judged(run) == judged(whole)
    assert series_of(run).steps.tolist() == list(range(7))
    assert workload_of(run)(Constants()).steps == workload_of(whole)(Constants()).steps
    assert {stage.difference_s.value for stage in compare(run, whole).stages} == {0.0}


def test_how_it_ended_is_still_known_and_every_row_still_read(stopped_in: Copy) -> None:
    path = stopped_in(7)
    described = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**described, "exit_code": 1}))
    run = rltrace.open_run(path)
    assert summarize(run, predict=False).run.exit_code == 1
    assert any("exit code 1" in says for says in alarms(run))
    assert run.sql("select count(distinct step) from steps").fetchall() == [(12,)]


def test_the_report_says_of_which_steps_it_is(stopped_in: Copy) -> None:
    said = list(run_lines.warnings(summarize(rltrace.open_run(stopped_in(7)), predict=False)))
    assert any(line.startswith("recording stopped in rollout") for line in said)
    assert (
        "where a process of the job stopped recording, rows are missing: figures are of steps "
        "0 to 6, which were whole by then"
    ) in said


@pytest.mark.parametrize(
    ("step", "because"),
    [
        (0, "no step was whole when a process stopped recording"),
        (1, "a process stopped recording then: 1 steady step, at least 3 are needed"),
    ],
)
def test_of_too_few_whole_steps_there_is_no_verdict(
    stopped_in: Copy, step: int, because: str
) -> None:
    found = summarize(rltrace.open_run(stopped_in(step)))
    assert found.verdict.first is None
    assert found.verdict.fixes == ()
    assert verdict.headline(found) == f"Cannot tell which wall binds: {because}"
    assert found.steps.complete == step


def test_of_steps_that_were_asked_for_those_that_are_whole_count(stopped_in: Copy) -> None:
    run = rltrace.open_run(stopped_in(7))
    narrow(run, Asked(4, 9))
    assert [time.step for time in summarize(run, predict=False).steps.times] == [4, 5, 6]


def test_the_agent_only_reads_counters(synthetic: Callable[..., Any], tmp_path: Path) -> None:
    run, truth = synthetic()
    path = Path(shutil.copytree(run.path, tmp_path / "run"))
    agent = next(p.who for p in run.processes if p.role == "agent")
    stop(path, agent, truth.steps[7].start_ns)
    opened = rltrace.open_run(path)
    assert whole_steps(opened) is opened


def test_pictures_and_timelines_of_it_can_be_drawn(stopped_in: Copy, tmp_path: Path) -> None:
    run = rltrace.open_run(stopped_in(7))
    notes = findings.find(run)
    assert len(notes.steps) == 7
    assert {len(words) for words in notes.words.values()} == {7}
    page = tmp_path / "report.html"
    html.write(run, summarize(run), page)
    assert "which were whole by then" in page.read_text()


def test_of_steps_that_all_began_later_there_is_no_verdict(stopped_in: Copy) -> None:
    path = stopped_in(3)
    for opened in (rltrace.open_run, compacted):
        run = opened(path)
        narrow(run, Asked(newest=5))
        found = summarize(run, predict=False)
        assert found.verdict.first is None
        assert found.steps.complete == 0


def test_of_a_run_without_steps_it_is_said_that_it_has_none(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("learner", (Stage.TRAIN, 0, 9)))
    stop(run.path, run.processes[0].who, at(7))
    found = summarize(rltrace.open_run(run.path), predict=False)
    assert verdict.headline(found) == "Cannot tell which wall binds: no step was recorded"


def compacted(path: Path) -> Run:
    compact(rltrace.open_run(path))
    delete_segments(path)
    return rltrace.open_run(path)
