"""`rltrace wrap --capture-tokens`: the token ids that a job had are those that are read back."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.analysis import Summary, summarize
from rltrace.testing.inside.hooks import identify
from rltrace.testing.inside.report import run_description as run_lines
from rltrace.testing.inside.report import to_json
from rltrace.testing.inside.run import ship_command as by_hand
from rltrace.testing.inside.trace import CACHE_VARIABLE, delete_segments, fetch
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.cli.conftest import invoke
from tests.hooks.conftest import untraced, wrapped

JOB = """
import os, rltrace

def prompt_of(n, i): return [n, i, 5]
def response_of(n, i): return list(range(1000 * n + i, 1000 * n + 3 * i))

def generate(n, samples):
    for i in samples:
        with rltrace.trajectory(f"{n}/{i}", group=n, prompt_token_ids=prompt_of(n, i)) as t:
            t.finish("stop", response_token_ids=response_of(n, i))

for n in range(4):
    with rltrace.step(n):
        with rltrace.span("rollout"):
            pid = os.fork()
            if pid == 0:
                generate(n, range(100))
                os._exit(0)
            generate(n, range(100, 200))
            os.waitpid(pid, 0)
        for i in range(200):
            rltrace.reward(f"{n}/{i}", i)
            rltrace.use(f"{n}/{i}", tokens=2 * i)
        with rltrace.span("train"): pass
print("done")
"""
OWN = """
import rltrace
rltrace.start("own")
with rltrace.trajectory("x", prompt_token_ids=[1]): pass
rltrace.stop()
"""

Samples = dict[int, tuple[list[int], list[int] | None]]


def expected() -> Samples:
    """What the job had, by the hash of the sample's id; of a response without a token nothing."""
    return {
        identify(f"{n}/{i}"): ([n, i, 5], list(range(1000 * n + i, 1000 * n + 3 * i)) or None)
        for n in range(4)
        for i in range(200)
    }


def captured(run: Path) -> Samples:
    """What is read back."""
    query = "SELECT trajectory, prompt_token_ids, response_token_ids FROM captured"
    found = rltrace.open_run(run).sql(query).fetchall()
    assert len({row[0] for row in found}) == len(found)
    return {own_id: (prompt, response) for own_id, prompt, response in found}


def recorded(folder: Path, *options: str, job: str = JOB) -> Path:
    """The run of a job under `wrap --capture-tokens`."""
    (folder / "job.py").write_text(job)
    asked = ("--capture-tokens", *options, "--out", "run")
    done = wrapped(folder, *asked, "--", sys.executable, "job.py")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In many segments, since they are small; not to be written into."""
    small = "from rltrace.testing.inside.trace import segment; segment.SEGMENT_BYTES = 64 << 10\n"
    return recorded(tmp_path_factory.mktemp("captured"), job=small + JOB)


@pytest.fixture(params=[False, True], ids=["", "compacted"])
def stored(run: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The same run, to do with as one likes: as segments, and as Parquet alone."""
    path = Path(shutil.copytree(run, tmp_path / "run"))
    if request.param:
        compact(rltrace.open_run(path), part_bytes=200_000)
        delete_segments(path)
    return path


def said_of_them(summary: Summary) -> list[str]:
    """What a report warns of, of token ids."""
    return [line for line in run_lines.warnings(summary) if "token ids" in line]


def test_each_sample_has_the_tokens_that_the_job_had(run: Path) -> None:
    assert captured(run) == expected()
    opened = rltrace.open_run(run)
    assert opened.meta["settings"]["capture_tokens"] is True
    joined = "SELECT count(*) FROM captured JOIN trajectories USING (trajectory, start_ns, process)"
    assert opened.sql(joined).fetchall() == [(800,)]
    parts = "SELECT part, count(*) FROM captured_tokens GROUP BY part ORDER BY part"
    responses = sum(len(response or ()) for _, response in expected().values())
    assert opened.sql(parts).fetchall() == [("prompt", 2400), ("response", responses)]
    assert [p for p in opened.problems if p["what"] != "no-gpu"] == []
    assert len(list((run / "captured_tokens").glob("*.arrows"))) > 10  # segments that take turns
    summary = summarize(opened, predict=False)
    document = to_json.render(summary)
    assert document["run"]["token_ids"] is True
    (line,) = said_of_them(summary)
    assert line in document["warnings"]


def test_compacted_and_shipped_they_are_the_same(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert captured(stored) == expected()
    if rltrace.open_run(stored).is_compacted:
        assert len(list((stored / "parquet/captured_tokens").iterdir())) > 10
        return
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    url = by_hand.ship(stored, f"file://{tmp_path}/there", lambda *_: None).url
    assert captured(fetch(url)) == expected()


def test_of_some_steps_there_are_the_samples_that_they_used(stored: Path) -> None:
    asked = "SELECT trajectory, len(prompt_token_ids) AS tokens FROM captured"
    found = json.loads(invoke("query", stored, asked, "--steps", "2", "--json").stdout)
    wanted = [{"trajectory": identify(f"2/{i}"), "tokens": 3} for i in range(200)]
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_whoever_deletes_them_has_the_run_without(stored: Path) -> None:
    is_compacted = rltrace.open_run(stored).is_compacted
    for folder in stored.rglob("captured_tokens"):
        shutil.rmtree(folder)
    left = rltrace.open_run(stored)
    assert captured(stored) == {}
    assert left.rows("captured_tokens") == 0
    assert left.is_compacted == is_compacted
    assert left.sql("SELECT count(*) FROM trajectories").fetchall() == [(800,)]
    assert [p for p in left.problems if p["what"] != "no-gpu"] == []
    (line,) = said_of_them(summarize(left, predict=False))
    assert "deleted" in line


def test_the_report_says_that_none_were_at_hand(tmp_path: Path) -> None:
    job = "import rltrace\nwith rltrace.step(0), rltrace.trajectory('x'): print('done')\n"
    summary = summarize(rltrace.open_run(recorded(tmp_path, job=job)), predict=False)
    assert summary.run.token_ids is False
    (line,) = said_of_them(summary)
    assert "--capture-tokens" in line


def test_of_the_captured_samples_the_query_tells_the_worst_and_the_best(run: Path) -> None:
    found = json.loads(invoke("query", run, "@captured_samples", "--json").stdout)
    assert [row["reward"] for row in found] == sorted([*range(5)] * 4 + [*range(195, 200)] * 4)
    had = expected()
    for row in found:
        prompt, response = had[row["trajectory"]]
        assert (row["prompt_token_ids"], row["response_token_ids"]) == (prompt, response)
        assert row["used_in_step"] == (prompt or [-1])[0]
    shown = invoke("query", run, "@captured_samples", "--csv")
    assert (shown.exit_code, len(shown.stdout.splitlines())) == (0, 41)


def test_a_run_that_a_program_begins_itself_is_not_asked_by_what_was(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    environment = {"RLTRACE_CAPTURE_TOKENS": "1"}  # left in a shell of a run that has ended
    done = untraced(sys.executable, "own.py", cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert captured(tmp_path / "own") == {}
    (tmp_path / "job.py").write_text(JOB)
    words = ("--out", "run", "--", sys.executable, "job.py")
    assert wrapped(tmp_path, *words, **environment).returncode == 0
    assert captured(tmp_path / "run") == {}
