"""The wording: one snapshot a section. `make snapshots` writes them anew; read their diff."""

from __future__ import annotations

import io
import os
import re
from collections import defaultdict
from pathlib import Path

import pytest
from rich.console import Console

from rltrace.testing.inside.report import screen, sections
from rltrace.testing.inside.report import terminal_tables as printed
from tests.cli.conftest import typed
from tests.report.summaries import Summaries, run_of_kind

SNAPSHOTS = Path(__file__).parent / "snapshots"
KINDS = ("colocated", "one-step-off", "async", "crashed", "no steps", "hung", "empty")
ASKED = {
    "plan": "plan --model Qwen/Qwen2.5-32B --gpus 32xH100 --mean-tokens 6000 --cap 32768",
    "triage": "triage --rollout 360 --reward 80 --train 120 --sync 35",
    "whatif": "whatif RUN",
    "compare": "compare RUN OTHER",
    "gate": "gate RUN --max lag.p99=4 --max step=0.001 --wall rollout",
}
"""Commands with a snapshot of what they print."""
WRITE = "RLTRACE_WRITE_SNAPSHOTS" in os.environ


@pytest.fixture(scope="module")
def texts(summary: Summaries, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each section says of each kind of run, by the name of its snapshot."""
    said: dict[str, list[str]] = defaultdict(list)

    def say(name: str, kind: str, console: Console) -> None:
        out = console.file
        assert isinstance(out, io.StringIO)
        said[name].append(f"== {kind}\n{out.getvalue().strip()}\n")

    for kind in KINDS:
        console = Console(file=io.StringIO(), width=80)
        screen.render(summary(kind), console)
        say("screen", kind, console)
        for question, parts in sections(summary(kind), own_figures=True):
            for section in parts:
                console = Console(file=io.StringIO(), width=100)
                printed.show(section, console)
                say(section.title or question, kind, console)
    with pytest.MonkeyPatch.context() as here:
        here.chdir(tmp_path_factory.mktemp("asked"))
        here.setenv("COLUMNS", "80")
        for name, kind in zip(("a", "b"), KINDS, strict=False):
            Path(name).mkdir()
            run_of_kind(kind, Path(name))
        for name, line in ASKED.items():
            said[name].append(typed(line, RUN="a/run", OTHER="b/run").output)
    names = {re.sub(r"\W+", "-", one.lower()).strip("-"): "\n".join(of) for one, of in said.items()}
    if WRITE:
        SNAPSHOTS.mkdir(exist_ok=True)
        for old in SNAPSHOTS.glob("*.txt"):
            old.unlink()
        for name, text in names.items():
            (SNAPSHOTS / f"{name}.txt").write_text(text)
    return names


def test_each_section_says_what_its_snapshot_says(texts: dict[str, str]) -> None:
    kept = {file.stem: file.read_text() for file in SNAPSHOTS.glob("*.txt")}
    assert kept.keys() == texts.keys()
    differ = [name for name, text in texts.items() if text != kept[name]]
    assert not differ, "`make snapshots` writes them anew: read their diff"
