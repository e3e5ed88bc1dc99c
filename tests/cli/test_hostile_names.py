"""What a job calls its parts is text: a terminal obeys none of it, a page shows none of it as its
own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rltrace.trace.run_dir import update_run_json
from rltrace.trace.schema import TABLES
from rltrace.trace.vocabulary import Stage
from tests.analysis.handmade import at, between, process, rows, run_of

HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x9b31m\r\n\u202e<script>window.hacked=1</script>`|![i](http://e.vil)"
)

_COMMANDS = (
    "report",
    "report --markdown",
    "info",
    "ls",
    "top --once",
    "whatif",
    "compare RUN",
    "export prometheus --once",
    "query|SELECT * FROM spans",
    "query|SELECT * FROM processes|--csv",
    "query|PIVOT spans ON name USING count(*)",
    "query|PIVOT spans ON name USING count(*)|--csv",
    "query|SELECT * FROM nothing_like_this",
    "gate --max lag.p99=4",
)

_SHELL = """
import sys
from rltrace.cli import main
for line in sys.argv[2:]:
    words = line.split("|") if "|" in line else line.split()
    words = [sys.argv[1] if word == "RUN" else word for word in words]
    folder = [] if words[0] == "ls" else [sys.argv[1]]
    print("=====", line, flush=True)
    try:
        main([*words, *folder], prog_name="rltrace")
    except SystemExit as ended:
        print("-----", ended.code, flush=True)
"""


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which everything that has a name has a hostile one."""
    folder = tmp_path_factory.mktemp("rltrace-runs")
    driver = process(HOSTILE, *((("step", n), 3 * n, 3 * n + 3) for n in range(6)))
    for n in range(6):
        driver.span(between(3 * n, 3 * n + 2), HOSTILE, Stage.ROLLOUT, n)
        driver.span(between(3 * n + 2, 3 * n + 3), f"train {HOSTILE}", Stage.TRAIN, n)
    rows(driver, "samples", time_s=[1, 2, 3], counter=[0, 0, 0], device=[0, 0, 0], value=[1, 2, 3])
    run = run_of(
        folder,
        driver,
        end_real_ns=at(20),
        exit_code=1,
        command=["python", HOSTILE],
        id=HOSTILE,
        framework=HOSTILE,
        framework_version=HOSTILE,
        cwd=HOSTILE,
        settings={"hooks": [f"{HOSTILE}:x=step"], HOSTILE: HOSTILE},
    ).path
    for file in (run / "process").glob("*.json"):
        more = {"host": HOSTILE, "adapter": HOSTILE, "versions": {HOSTILE: HOSTILE}}
        file.write_text(json.dumps({**json.loads(file.read_text()), **more, "argv": [HOSTILE]}))
    said = {"what": HOSTILE, "target": HOSTILE, "detail": HOSTILE}
    stopped = {**said, "what": "recording-stopped", "real_ns": at(5)}
    lines = "".join(f"{json.dumps(line)}\n" for line in (said, stopped))
    (run / "problems" / f"{next((run / 'process').glob('*.json')).stem}.jsonl").write_text(lines)
    (run / "spans" / f"{HOSTILE.replace('/', '')}.0.arrows").write_bytes(b"torn")
    assert "samples" in TABLES
    update_run_json(str(run), price=None)
    return run


def on_a_terminal(*lines: str, run: Path) -> str:
    """What commands put on a terminal, stdout and stderr together."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "120", "NO_COLOR": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", _SHELL, str(run), *lines],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        cwd=run.parent.parent,
    ) as shell:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # its other end is closed
                break
            parts.append(part)
        shell.wait(timeout=300)
    os.close(ours)
    return b"".join(parts).decode("utf-8", "replace")


def test_no_name_is_obeyed_by_a_terminal(hostile_run: Path) -> None:
    shown = on_a_terminal(*_COMMANDS, run=hostile_run)
    assert "Traceback" not in shown, shown
    assert shown.count("=====") == len(_COMMANDS)
    for command, _, said in (part.partition("\r\n") for part in shown.split("=====")[1:]):
        obeyed = re.findall(
            r"[^\n\x20-\x7e\xa0-\u2027\u2030-\u2065\u2070-\uffff]", said.replace("\r\n", "\n")
        )
        assert obeyed == [], (command, said[:2000])
        assert "\u202e" not in said, command
        codes = re.findall(r"----- (\d+)", said)
        assert codes, command
        assert codes[0] in "0123", (command, said)
