"""What a gate said, in each form: text, Markdown, JUnit, GitHub's annotations, JSON."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from rltrace.report.formats import gate_outputs as gate_forms
from rltrace.report.sections import gate_section
from rltrace.testing.inside.analysis import Interval, parse_condition
from rltrace.testing.inside.analysis import confidence_interval_UNKNOWN as UNKNOWN
from rltrace.testing.inside.analysis import metrics as gate
from rltrace.testing.inside.report import terminal_tables as printed
from rltrace.testing.inside.trace import RltraceError

ROLLOUT = gate.StageChange(
    "rollout", 0.5, 0.55, Interval(0.05, 0.04, 0.06), Interval(0.08, 0.06, 0.1)
)
PEAK = gate.FactorChange("peak rate", 1200.0, 1100.0, Interval(0.92, 0.9, 0.94))

HOLDS = gate.Finding(
    parse_condition("max", "lag.p99=4"), gate.PASS, "lag.p99 is 1 of at most 4", "policy versions",
    1.0, math.nan, UNKNOWN, UNKNOWN, 4.0, math.nan, math.nan, "", None, None, None, None, None,
)  # fmt: skip
WORSE = gate.Finding(
    parse_condition("max-regression", "goodput=3%"), gate.REGRESSION, "goodput fell by 8 %",
    "useful tokens/s", 920.0, 1000.0, Interval(0.92, 0.9, 0.94), Interval(0.08, 0.06, 0.1),
    0.03, 0.001, 0.002, "by token, as tokens a step doubled", None, None, None, ROLLOUT, PEAK,
)  # fmt: skip
UNCLEAR = gate.Finding(
    parse_condition("max-regression", "step.p95=10%"), gate.UNSURE,
    "the noise is 20 %, <b>100 %</b>", "s", 0.7, 0.65, Interval(1.08, 0.9, 1.3),
    Interval(0.08, -0.1, 0.3), 0.1, 0.2, 0.2, "", 40, 2, 3, None, None,
)  # fmt: skip

ALL = gate.Judgement(
    findings=(HOLDS, WORSE, UNCLEAR),
    steps=(30,),
    baseline_steps=(30, 31),
    warmup=(2,),
    baseline_warmup=(2, 1),
    paired=False,
    stages=(ROLLOUT, replace(ROLLOUT, name="τ_R|other")),
    factors=(PEAK,),
    drift=(gate.Drift("tokens a sample", 100.0, 120.0, Interval(1.2, 1.1, 1.3), True),),
    notes=("a note with \x07 and 50 %",),
    alpha=0.05,
)


def test_a_terminal_shows_what_failed_first_and_what_made_it() -> None:
    out = io.StringIO()
    for section in gate_section.sections(ALL):
        printed.show(section, Console(file=out, width=100))
    text = " ".join(out.getvalue().split())
    places = [text.index(said) for said in ("✗ max-reg", "? max-reg", "✓ max lag", "metric")]
    assert places == sorted(places)
    for said in ("8.0 % worse", "500 → 550 ms a step", "(+6.0 % to +10.0 %)", "40 steps more"):
        assert said in text


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
    assert (told["schema"], told["schema_version"]) == ("rltrace-gate", 2)
    assert (told["outcome"], told["exit_code"]) == ("regression", 1)
    lag, goodput, p95 = told["findings"]
    condition = {"kind": "max", "subject": "lag.p99", "limit": 4.0, "text": "max lag.p99=4"}
    assert lag["condition"] == condition
    assert lag["baseline"] is None
    assert goodput["worse_share"] == {"value": 0.08, "low": 0.06, "high": 0.1}
    assert goodput["stage"]["name"] == "rollout"
    assert (p95["more_steps"], p95["more_runs"], p95["more_baselines"]) == (40, 2, 3)


def test_what_is_appended_keeps_what_stands_there(tmp_path: Path) -> None:
    for text in ("one\n", "two\n"):
        gate_forms.write(tmp_path / "new/summary.md", text, append=True)
    assert (tmp_path / "new/summary.md").read_text() == "one\ntwo\n"
    with pytest.raises(RltraceError, match="cannot write"):
        gate_forms.write(tmp_path / "new/summary.md/gate.xml", "x")
