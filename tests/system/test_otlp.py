"""OpenTelemetry's own definition of a request takes what is exported, field by field."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import rltrace
from rltrace.testing.inside.report import Exported, requests
from tests.report.everything import everything

_IDS = ("traceId", "spanId", "parentSpanId")


def as_protobuf_has_it(value: Any) -> Any:
    """OTLP's JSON writes ids in hexadecimal, where that of protobufs has base64."""
    if isinstance(value, list):
        return [as_protobuf_has_it(one) for one in value]
    if isinstance(value, dict):
        ids = {k: base64.b64encode(bytes.fromhex(value[k])).decode() for k in _IDS if k in value}
        return {k: as_protobuf_has_it(v) for k, v in value.items()} | ids
    return value


def test_the_official_protobufs_know_every_field(tmp_path: Path) -> None:
    run = rltrace.open_run(everything(tmp_path / "run"))
    exported = Exported()
    spans = links = 0
    for request in requests(run, exported):
        text = json.dumps(as_protobuf_has_it(request))
        read = json_format.Parse(text, ExportTraceServiceRequest())  # an unknown field is an error
        for resource in read.resource_spans:
            assert {a.key for a in resource.resource.attributes} >= {"service.name", "process.pid"}
            for scope in resource.scope_spans:
                assert scope.scope.name == "rltrace"
                spans += len(scope.spans)
                for span in scope.spans:
                    assert len(span.trace_id) == 16
                    assert len(span.span_id) == 8
                    assert span.end_time_unix_nano >= span.start_time_unix_nano > 0
                    links += len(span.links)
    assert spans == exported.total > 0
    assert links > 0
