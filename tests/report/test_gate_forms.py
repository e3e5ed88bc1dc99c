"""What a gate said, in each form: text, Markdown, JUnit, GitHub's annotations, JSON."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from rltrace.report import gate_forms, gate_section
from rltrace.testing.inside.report import printed
from rltrace.testing.inside.trace import RltraceError
from tests.report.judgements import ALL, HOLDS, UNCLEAR, WORSE, only


def on_terminal(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    for section in gate_section.sections(ALL):
        printed.show(section, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("width", [60, 100])
def test_a_terminal_shows_what_made_it_and_what_would_tell(width: int) -> None:
    text = on_terminal(width)
    assert "max-regression goodput=3%: 8.0 % worse (95 % 6.0 % to 10 %); goodput fell" in text
    assert "Compared by token, as tokens a step doubled." in text
    assert "Most of it is rollout: 500 ms a step in the baseline, 550 ms here" in text
    assert "(+6.0 % to +10.0 %)" in text
    assert "peak rate changed most: -8.0 % (-10.0 % to -6.0 %)" in text
    assert (
        "What would tell: 40 steps more of each run, 2 runs more and 3 runs more in the baseline."
        in text
    )
    assert "30 steps of 1 run (2 of warm-up left out) against 61 steps of 2 runs" in text
    assert "devices 8 → 4" in text


@pytest.mark.parametrize(
    ("findings", "says"),
    [
        ([HOLDS], "pass: the condition holds"),
        ([HOLDS, HOLDS], "pass: all 2 conditions hold"),
        ([HOLDS, UNCLEAR], "cannot tell: max-regression step.p95=10%"),
        ([UNCLEAR, WORSE], "regression: max-regression goodput=3%"),
    ],
)
def test_the_headline_is_the_worst_of_all(findings: list[object], says: str) -> None:
    assert gate_section.headline(only(*findings)) == says  # type: ignore[arg-type]


def test_a_sentence_begins_large_and_ends() -> None:
    *_, others = gate_section.sections(ALL)
    assert all(line[0].isupper() and line.endswith(".") for line in others.lines)


def test_a_run_that_passes_is_said_in_few_lines() -> None:
    titles = [section.title for section in gate_section.sections(only(HOLDS))]
    assert titles == ["Gate: pass: the condition holds", "What else differs"]


def test_markdown_has_whole_tables_and_no_markup_of_the_job() -> None:
    text = gate_forms.to_markdown(ALL)
    cells = 0
    for line in text.splitlines():
        found = len(re.findall(r"(?<!\\)\|", line)) - 1 if line.startswith("|") else 0
        assert not cells or not found or cells == found, line
        cells = found
    assert text.startswith("## Gate: regression")
    assert "<b>" not in text
    assert "τ\\_R\\|other" in text


def test_junit_has_a_case_for_each_condition() -> None:
    suite = ElementTree.fromstring(gate_forms.to_junit(ALL)).find("testsuite")
    assert suite is not None
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "3", "failures": "1", "errors": "1", "skipped": "0"}
    outcomes = {case.get("name"): [part.tag for part in case] for case in suite}
    assert outcomes == {
        "max lag.p99=4": ["system-out"],
        "max-regression goodput=3%": ["failure"],
        "max-regression step.p95=10%": ["error"],
    }
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "rollout" in failure.get("message", "")


def test_annotations_are_one_line_each_and_escaped() -> None:
    lines = list(gate_forms.annotation_lines(ALL))
    assert [line.split(" ")[0] for line in lines] == ["::error", "::warning"]
    assert "goodput fell by 8 %25" in lines[0]
    assert all("\n" not in line for line in lines)
    title, said = lines[0].removeprefix("::error title=").split("::", 1)
    assert title == "rltrace gate%2C regression"
    assert "goodput" in said


def test_json_has_every_figure_and_null_for_what_is_unknown() -> None:
    told = json.loads(json.dumps(gate_forms.as_json(ALL), allow_nan=False))
    assert (told["schema"], told["outcome"], told["exit_code"]) == (
        "rltrace-gate/1",
        "regression",
        1,
    )
    lag, goodput, p95 = told["findings"]
    assert lag["condition"] == {
        "kind": "max",
        "subject": "lag.p99",
        "limit": 4.0,
        "text": "max lag.p99=4",
    }
    assert lag["baseline"] is None
    assert goodput["worse"] == {"value": 0.08, "low": 0.06, "high": 0.1}
    assert goodput["stage"]["name"] == "rollout"
    assert (p95["more_steps"], p95["more_runs"], p95["more_baselines"]) == (40, 2, 3)


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RltraceError, match="cannot write"):
        gate_forms.write(tmp_path / "file" / "gate.xml", "x")


def test_what_is_appended_keeps_what_stands_there(tmp_path: Path) -> None:
    for text in ("one\n", "two\n"):
        gate_forms.write(tmp_path / "new/summary.md", text, append=True)
    assert (tmp_path / "new/summary.md").read_text() == "one\ntwo\n"
