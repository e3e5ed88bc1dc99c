"""`judge_server.py PORT`: marks the digits of answers, as OpenRLHF asks for it over HTTP, and hangs
as `JOB_HANGS` says."""

from __future__ import annotations

import sys
from typing import Any

from hangs import may_hang
from json_server import serving


def judge(_: str, asked: Any) -> Any:
    may_hang("judge")
    [query] = asked["query"]
    mark = sum(character.isdigit() for character in query) / max(1, len(query))
    return {"rewards": mark, "scores": mark}


if __name__ == "__main__":
    serving(judge, int(sys.argv[1])).serve_forever()
