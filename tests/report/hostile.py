"""A run in which everything that has a name has a hostile one."""

from __future__ import annotations

import json
from pathlib import Path

from rltrace.testing.handmade_runs import at, between, process, rows, run_of
from rltrace.testing.inside.trace import Stage

MARKUP = "</script><img src=x onerror='window.hacked=1'>"
"""Tells a page to run a script."""

HOSTILE = f"\x1b]0;owned\x07\x1b[2J\x9b31m\r\n\u202e{MARKUP}`|![i](http://e.vil) $\\frac{{<!--\"'&"
"""And a terminal to clear itself, Markdown to load a picture, matplotlib to set a formula."""


def hostile_run(folder: Path) -> Path:
    """Makes the run `folder/run`; its path."""
    driver = process(HOSTILE, *((("step", n), 3 * n, 3 * n + 3) for n in range(6)))
    for n in range(6):
        driver.span(between(3 * n, 3 * n + 2), HOSTILE, Stage.ROLLOUT, n)
        driver.span(between(3 * n + 2, 3 * n + 3), f"train {HOSTILE}", Stage.TRAIN, n)
    rows(driver, "samples", time_s=[1, 2, 3], counter=[0, 0, 0], device=[0, 0, 0], value=[1, 2, 3])
    named = dict.fromkeys(("id", "framework", "framework_version", "cwd"), HOSTILE)
    named |= {"settings": {"hooks": [f"{HOSTILE}:x=step"], HOSTILE: HOSTILE}}
    named |= {"end_real_ns": at(20), "exit_code": 1, "command": ["python", HOSTILE]}
    run = run_of(folder, driver, **named).path
    for file in (run / "process").glob("*.json"):
        more = {"host": HOSTILE, "adapter": HOSTILE, "versions": {HOSTILE: HOSTILE}}
        file.write_text(json.dumps({**json.loads(file.read_text()), **more, "argv": [HOSTILE]}))
    said = {"what": HOSTILE, "target": HOSTILE, "detail": HOSTILE}
    stopped = {**said, "what": "recording-stopped", "real_ns": at(5)}
    lines = "".join(f"{json.dumps(line)}\n" for line in (said, stopped))
    (run / "problems" / f"{next((run / 'process').glob('*.json')).stem}.jsonl").write_text(lines)
    (run / "spans" / f"{HOSTILE.replace('/', '')}.0.arrows").write_bytes(b"torn")
    return run
