"""Commands where a shell or a container leaves little: an answer, or one sentence and its code."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rltrace.cli.group import told
from rltrace.testing.inside.trace import UNREADABLE, bounds
from tests.fuzz.hostile_runs import CODES, make_good

GIB = 1 << 20  # kB, as `ulimit` counts
ANALYSES = (
    *("report run", "report run --html page.html", "report log.jsonl --as verl", "timeline run"),
    *('query run "from steps"', "whatif run", "compare run other", "gate run --min goodput=0"),
    *("gate run --baseline baseline.json", "baseline run -o b.json --anyway"),
)
OTHERS = ("info run", "top run --once", "export prometheus run --once", "compact run", "help gate",
          "import verl log.jsonl --out made", "whatif --stages stages.toml")  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    make_good(folder)
    shutil.copytree(folder / "segments", folder / "run")
    shutil.copytree(folder / "segments", folder / "other")
    (folder / "stages.toml").write_text("[stages]\nrollout = 6\ntrain = 4\n")
    line = '{"step": %d, "timing_s/gen": 1.5, "timing_s/step": 2.5}\n'
    (folder / "log.jsonl").write_text("".join(line % step for step in range(20)))
    return folder


def limited(place: Path, addresses_kb: int, line: str) -> tuple[int, list[str]]:
    shutil.rmtree(place / "made", ignore_errors=True)
    words = [sys.executable, "-m", "rltrace", *shlex.split(line)]
    words = ["sh", "-c", f'ulimit -v {addresses_kb}; exec "$@"', "sh", *words]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("line", [*ANALYSES, *OTHERS])
def test_with_few_addresses_a_command_ends_in_its_answer_or_a_sentence(
    place: Path, line: str
) -> None:
    for addresses_kb in (GIB // 2, 5 * GIB // 4):
        code, said = limited(place, addresses_kb, line)
        assert code in CODES
        assert code != 1 or line.startswith("gate")
        assert code == 0 or said[-1].startswith("rltrace: ")
        assert not [one for one in said if "Traceback" in one]
        if line in ANALYSES:  # too few for it, and 1 of `gate` is an answer
            assert (code, "ulimit" in said[-1]) == (UNREADABLE, True)


@pytest.mark.parametrize("line", ANALYSES)
def test_with_enough_addresses_it_answers(place: Path, line: str) -> None:
    code, said = limited(place, bounds.LEAST_SPACE >> 10, line)
    assert code == (2 if "baseline.json" in line else 0), said  # its own run is in that baseline


def test_no_more_threads_is_no_mistake_of_ours() -> None:
    before = threading.stack_size(1 << 46)  # for which there are no addresses
    try:
        with pytest.raises(RuntimeError) as error:
            threading.Thread(target=print).start()
    finally:
        threading.stack_size(before)
    assert told(error.value)[1] == UNREADABLE
