"""Handing a run's spans to a collector of OpenTelemetry over HTTP, in OTLP's JSON."""

from __future__ import annotations

import gzip
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from rltrace.report.otlp import Exported, requests
from rltrace.trace.errors import ANSWER_IS_NO, UNREADABLE, RltraceError, WrongUsage
from rltrace.trace.redacted import redacted_urls
from rltrace.trace.run import Run
from rltrace.trace.texts import parsed

_PATH = "/v1/traces"
_TIMEOUT_S = 30.0
_TRIES = 5
_LATER = (429, 502, 503, 504)  # what OTLP/HTTP says to try again
_LONGEST_WAIT_S = 30.0
_MOST_SAID_BYTES = 1 << 20


def send(run: Run, endpoint: str, headers: Mapping[str, str]) -> tuple[str, Exported]:
    """Sends a run to the collector at `endpoint`, with the path or without; where to, and what.
    Errors: `RltraceError` where that is no URL, where nobody answers, where it refuses, and where
    it took part of it only."""
    sender, exported = _Sender(endpoint, headers), Exported()
    for request in requests(run, exported):
        sender.post(request)
    if sender.rejected:
        raise RltraceError(
            f"{sender.url} did not take {sender.rejected:,} of {exported.total:,} spans: "
            f"{sender.said or 'it does not say why'}",
            ANSWER_IS_NO,
        )
    return sender.url, exported


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Whoever answers may not have the headers, a token among them, sent to another place; and of
    what is posted nothing arrives there."""

    def redirect_request(self, *_: Any) -> None:
        """No request: the answer is an error then."""


class _Sender:
    """Posts requests to a collector; `url` is where to, without what looks like a secret,
    `rejected` are the spans that it did not take, `said` why."""

    def __init__(self, endpoint: str, headers: Mapping[str, str]) -> None:
        try:
            parts = urlsplit(endpoint)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise WrongUsage(f"--endpoint {endpoint}: give a URL, e.g. http://127.0.0.1:4318")
        if "@" in parts.netloc:
            said = "--endpoint holds credentials: give them with --header Authorization=..."
            raise WrongUsage(said)
        path = parts.path.rstrip("/")
        path = path if path.endswith(_PATH) else path + _PATH
        self._url = parts._replace(path=path).geturl()
        self.url = redacted_urls(self._url)
        self._opener = urllib.request.build_opener(_NoRedirects)
        self.rejected = 0
        self.said = ""
        form = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        self._headers = {**form, **headers}

    def post(self, request: Mapping[str, Any]) -> None:
        """Sends one request, again where the collector says later. Errors: `RltraceError` where it
        cannot be reached or refuses."""
        body = gzip.compress(json.dumps(request, allow_nan=False).encode(), 1)
        for left in reversed(range(_TRIES)):
            post = urllib.request.Request(self._url, body, self._headers, method="POST")
            try:
                with self._opener.open(post, timeout=_TIMEOUT_S) as answer:
                    self._partly(answer.read(_MOST_SAID_BYTES))
                return
            except urllib.error.HTTPError as error:
                if error.code not in _LATER or not left:
                    said = error.read(500).decode("utf-8", "replace").strip()
                    if elsewhere := error.headers.get("Location"):
                        said = f"what is asked for is at {redacted_urls(elsewhere)}"
                    message = f"{self.url} answered {error.code} {error.reason}: {said}"
                    raise RltraceError(message.rstrip(": "), UNREADABLE) from None
                time.sleep(_wait_s(error.headers.get("Retry-After"), _TRIES - left))
            except (OSError, HTTPException, ValueError) as error:
                # What is no HTTP (a port for gRPC), and a URL or header that cannot be sent, too.
                why = str(getattr(error, "reason", "") or error).strip() or type(error).__name__
                raise RltraceError(f"{self.url} cannot be reached: {why}", UNREADABLE) from None

    def _partly(self, answer: bytes) -> None:
        """A collector that took all says nothing, or an empty object."""
        try:
            partly = parsed(answer or b"{}").get("partialSuccess") or {}
            self.rejected += int(partly.get("rejectedSpans", 0))
            self.said = str(partly.get("errorMessage") or self.said)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return  # it took them, and told so in another form (protobuf)


def _wait_s(said: str | None, tried: int) -> float:
    """As long as the collector says, else twice as long each time."""
    wished = float(said) if said and said.isdecimal() else 0.5 * 2**tried
    return min(wished, _LONGEST_WAIT_S)
