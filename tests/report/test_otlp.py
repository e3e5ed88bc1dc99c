"""A run over OTLP: what is exported is the run, and can be imported again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.report.formats.otlp import Exported, requests, write
from rltrace.testing.inside.run import import_log
from rltrace.testing.inside.trace import TABLES
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.report.everything import everything

KINDS = ("spans", "trajectories", "rewards", "uses", "syncs")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An asynchronous run with all that there is."""
    return rltrace.open_run(everything(tmp_path_factory.mktemp("otlp") / "run"))


@pytest.fixture(scope="module")
def spans(run: Run) -> list[dict[str, Any]]:
    return [span for request in requests(run, Exported()) for span in of_request(request)]


def of_request(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def known(span: dict[str, Any]) -> dict[str, Any]:
    return {a["key"]: next(iter(a["value"].values())) for a in span.get("attributes", ())}


def one(run: Run, query: str) -> Any:
    ((value,),) = run.sql(query).fetchall()
    return value


def ended(table: str) -> str:
    return f"FROM {table}" + ("" if table == "uses" else " WHERE end_ns IS NOT NULL")


def test_every_row_that_has_ended_is_a_span(run: Run, spans: list[dict[str, Any]]) -> None:
    counted = Counter(known(span)["rltrace.table"] for span in spans)
    assert counted == {t: one(run, f"SELECT count(*) {ended(t)}") for t in KINDS}
    lengths_ns = Counter[str]()
    for span in spans:
        length_ns = int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
        lengths_ns[known(span)["rltrace.table"]] += length_ns
    for table in ("spans", "trajectories", "rewards", "syncs"):
        assert lengths_ns[table] == one(run, f"SELECT sum(end_ns - start_ns) {ended(table)}")


def test_traces_hang_together(run: Run, spans: list[dict[str, Any]]) -> None:
    ids = {(span["traceId"], span["spanId"]) for span in spans}
    assert len(ids) == len(spans)
    assert all(len(trace) == 32 and len(span) == 16 for trace, span in ids)
    children = [span for span in spans if "parentSpanId" in span]
    assert all((span["traceId"], span["parentSpanId"]) in ids for span in children)
    links = [link for span in spans for link in span.get("links", ())]
    begun = [span for span in spans if known(span).get("rltrace.stage") == "step"]
    steps = {(s["traceId"], s["spanId"]): int(known(s)["rltrace.step"]) for s in begun}
    assert len(steps) == one(run, "SELECT count(*) FROM steps")
    for link in links:
        assert steps[link["traceId"], link["spanId"]] == int(known(link)["rltrace.step"])
    trained = "SELECT count(DISTINCT (trajectory, step)) FROM lags WHERE fate = 'trained'"
    assert len(links) == one(run, trained) > 0


def test_trajectories_have_the_conventions_names(run: Run, spans: list[dict[str, Any]]) -> None:
    made = [known(s) for s in spans if known(s)["rltrace.table"] == "trajectories"]
    assert {a["gen_ai.operation.name"] for a in made} <= {"text_completion", "invoke_agent"}
    said = sum(int(a.get("gen_ai.usage.output_tokens", 0)) for a in made)
    query = f"SELECT sum(response_tokens) {ended('trajectories')}"
    assert said == one(run, query)
    for attributes in made:  # what is not known is not there
        assert not any("NULL" in str(v) or v in ("-1", "None") for v in attributes.values())


@pytest.mark.parametrize("name", ["spans.jsonl", "spans.jsonl.gz"])
def test_it_can_be_imported_again_row_by_row(run: Run, tmp_path: Path, name: str) -> None:
    write(run, tmp_path / name)
    again = rltrace.open_run(import_log("otlp", tmp_path / name, tmp_path / "again").path)
    for table in KINDS:
        columns = ", ".join(f'"{column.name}"' for column in TABLES[table].columns)
        query = f"SELECT {columns} {ended(table)} ORDER BY ALL"
        if table == "spans":  # a step has a name of its own in every run
            query = query.replace('"name"', "CASE stage WHEN 'step' THEN 'step' ELSE name END")
        assert again.sql(query).fetchall() == run.sql(query).fetchall()
    roles = "SELECT role, rank, count(*) FROM spans GROUP BY ALL ORDER BY ALL"
    assert again.sql(roles).fetchall() == run.sql(roles).fetchall()
    assert again.meta["framework"] == (run.meta["framework"] or "trace")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startTimeUnixNano", "9" * 40),
        ("startTimeUnixNano", "0"),
        ("endTimeUnixNano", "1"),
        ("rltrace.step", {"intValue": "9" * 30}),
        ("rltrace.step", {"arrayValue": {"values": []}}),
        ("rltrace.stage", {"stringValue": "trainn"}),
    ],
)
def test_a_damaged_span_is_counted_only(run: Run, tmp_path: Path, name: str, value: Any) -> None:
    request = next(requests(run, Exported()))
    of_one = request["resourceSpans"][0]["scopeSpans"][0]
    of_one["spans"] = of_one["spans"][:3]
    damaged = of_one["spans"][1]
    if isinstance(value, dict):
        damaged["attributes"].append({"key": name, "value": value})
    else:
        damaged[name] = value
    (tmp_path / "spans.json").write_text(json.dumps(request))
    done = import_log("otlp", tmp_path / "spans.json", tmp_path / "run")
    assert done.spans == 2
    assert any("1 spans that are damaged" in note for note in done.log_notes)
