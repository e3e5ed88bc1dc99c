"""What a gate said as Markdown, JSON, JUnit XML and annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rltrace.analysis.gate.metrics import PASS, REGRESSION, UNSURE, Judgement
from rltrace.report.formats import markdown, to_json
from rltrace.report.sections import gate_section
from rltrace.trace.errors import RltraceError
from rltrace.trace.untrusted_files import open_to_append, written

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
_COMMANDS = {REGRESSION: "error", UNSURE: "warning"}
_IN_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def to_markdown(found: Judgement) -> str:
    """Headings, lines and tables; ends without a newline."""
    parts = ("\n".join(markdown.section_lines(one)) for one in gate_section.sections(found))
    return "\n\n".join(parts)


def to_text(found: Judgement) -> str:
    """The answer without tables, for the message of a test; ends without a newline."""
    said = (gate_section.sentence(one) for one in found.findings if one.outcome == found.outcome)
    return "\n".join([gate_section.headline(found), *said])


def as_json(found: Judgement) -> dict[str, Any]:
    """Every figure, unknown as null."""
    values = to_json.plain(found)
    for one, told in zip(found.findings, values["findings"], strict=True):
        told["condition"]["text"] = one.condition.text
        told["says"] = gate_section.sentence(one)
    answer = to_json.of(found, "outcome", "exit_code")
    answer["headline"] = gate_section.headline(found)
    return to_json.document_of("gate", answer | values)


def to_junit(found: Judgement) -> str:
    """A test suite: regressions and alarms are failures, what cannot be told is an error."""
    cases = list(_cases(found))
    outcomes = [outcome for _, outcome, _ in cases]
    failures, errors = outcomes.count(REGRESSION), outcomes.count(UNSURE)
    counts = {"tests": len(cases), "failures": failures, "errors": errors, "skipped": 0}
    told = {"name": "rltrace gate", **{what: str(n) for what, n in counts.items()}}
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", told)
    for what, outcome, says in cases:
        name, said = {"classname": "rltrace.gate", "name": _xml(what)}, _xml(says)
        case = ElementTree.SubElement(suite, "testcase", name)
        if outcome == PASS:
            ElementTree.SubElement(case, "system-out").text = said
        else:
            kind = "failure" if outcome == REGRESSION else "error"
            why = {"type": outcome, "message": said}
            ElementTree.SubElement(case, kind, why).text = said
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _cases(found: Judgement) -> Iterator[tuple[str, str, str]]:
    for says in gate_section.alarmed(found):
        yield "the run has no alarm", REGRESSION, says
    for one in found.findings:
        yield one.condition.text, one.outcome, gate_section.sentence(one)


def _xml(text: str) -> str:
    """Without what no XML can hold; names of a job may."""
    return _IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def annotation_lines(found: Judgement) -> Iterator[str]:
    """A line for each run with an alarm and each condition that does not hold, for GitHub."""
    for _, outcome, says in _cases(found):
        if outcome in _COMMANDS:
            data = says.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            yield f"::{_COMMANDS[outcome]} title=rltrace gate%2C {outcome}::{data}"


def write(path: Path, text: str, append: bool = False) -> None:
    """Writes, or appends, text to a file. Errors: `RltraceError` where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_to_append(path) if append else written(path) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise RltraceError(f"cannot write {path}: {error.strerror}") from None
