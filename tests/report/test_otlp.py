"""A run over OTLP: what is exported is the run, and can be imported again."""

from __future__ import annotations

import gzip
import json
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPMessage, parse_headers
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import rltrace
from rltrace.report.otlp import Exported, requests, write
from rltrace.testing.inside.run import import_log, send
from rltrace.testing.inside.trace import TABLES, RltraceError, Run
from tests.cli.conftest import invoke
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


Asked = tuple[str, HTTPMessage, bytes]


def http(status: str, body: str = "", **headers: str) -> bytes:
    """An answer."""
    lines = [f"HTTP/1.0 {status}", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", body]).encode()


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[Asked]]]:
    """A server that gives these answers in turn, the last one from then on; its address, and what
    it was asked: the first line, the headers, what was posted."""
    asked: list[Asked] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline().decode()
            headers = parse_headers(self.rfile)
            posted = self.rfile.read(int(headers["Content-Length"] or 0))
            self.wfile.write(answers[min(len(asked), len(answers) - 1)])
            asked.append((line, headers, posted))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def export(run: Run, *words: str) -> Result:
    return invoke("export", "otlp", run.path, *words)


def test_a_collector_gets_all_spans(run: Run, spans: list[dict[str, Any]]) -> None:
    later = http("503 Service Unavailable", Retry_After="0")
    with answering(later, http("200 OK", "{}")) as (address, asked):
        done = export(run, "--endpoint", address, "--header", "X-Token=a=b", "--json")
        assert done.exit_code == 0, done.output
    for line, headers, _ in asked:
        assert line.startswith("POST /v1/traces ")
        assert (headers["Content-Type"], headers["X-Token"]) == ("application/json", "a=b")
    (first, *taken) = [json.loads(gzip.decompress(posted)) for _, _, posted in asked]
    assert first == taken[0]
    assert [span for request in taken for span in of_request(request)] == spans
    assert sum(json.loads(done.output)["spans"].values()) == len(spans)
    assert len({len(request["resourceSpans"]) for request in taken}) == 1


PARTLY = '{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "full"}}'


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (http("400 Bad Request", "a bad request"), 4, "answered 400 Bad Request: a bad request"),
        (http("200 OK", PARTLY), 1, "full"),
        # No HTTP, as that of a collector for gRPC, which answers in frames.
        (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\n", 4, "cannot be reached"),
    ],
    ids=["refuses", "takes a part", "no HTTP"],
)
def test_a_collector_that_does_not_take_all(run: Run, answer: bytes, code: int, said: str) -> None:
    with answering(answer) as (address, asked), pytest.raises(RltraceError, match=said) as refused:
        send(run, f"{address}/v1/traces/", {})
    assert asked[0][0].startswith("POST /v1/traces ")
    assert refused.value.exit_code == code


def test_a_collector_sends_a_token_nowhere_else(run: Run) -> None:
    """Of a POST that is led elsewhere a GET arrives, with the headers and without the spans."""
    with answering(http("200 OK")) as (other, asked):
        there = other.replace("127.0.0.1", "localhost") + "/x?token=a"
        with answering(http("302 Found", Location=there)) as (address, _):
            done = export(run, "--header", "X-Token=s3cret", "--endpoint", address)
    assert asked == []
    assert done.exit_code == 4, done.output
    assert "answered 302 Found" in done.output
    assert "/x?[redacted]" in done.output


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--endpoint", "localhost:4318"], 2, "give a URL"),
        (["--endpoint", "http://[::1"], 2, "give a URL"),
        (["--endpoint", "http://127.0.0.1:1"], 4, "cannot be reached"),
        (["--endpoint", "http://127.0.0.1:1", "--header", "a=b\nc"], 4, "cannot be reached"),
        (["--header", "a=b"], 2, "goes with --endpoint"),
        (["--endpoint", "http://x", "--header", "Authorization: Bearer s3cret"], 2, "NAME=VALUE"),
        (["--endpoint", "http://me:s3cret@127.0.0.1:1"], None, ""),
        (["--endpoint", "http://127.0.0.1:1/?token=s3cret"], None, ""),
        (["--endpoint", "http://x", "-o", "y"], 2, "not both"),
    ],
)
def test_wrong_usage_is_one_sentence_without_a_secret(
    run: Run, words: list[str], code: int | None, said: str
) -> None:
    done = export(run, *words)
    assert done.exit_code == code if code else done.exit_code in (2, 4)
    assert said in done.output
    assert "Traceback" not in done.output
    assert "s3cret" not in done.output
