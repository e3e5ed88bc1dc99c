"""`rltrace wrap --sample`: some samples whole, the same in every process; the others nowhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.analysis.alarms import alarms
from rltrace.hooks.identity import identify
from rltrace.run.share_option import share_of
from rltrace.trace.errors import RltraceError
from tests.hooks.conftest import wrapped

JOB = """
import os, rltrace
for n in range(4):
    with rltrace.step(n):
        for i in range(500):
            with rltrace.trajectory(f"{n}/{i}", group=n) as t, rltrace.span("rollout"):
                t.first_token()
                t.finish("stop", response_tokens=i)
        pid = os.fork()
        if pid == 0:
            for i in range(500):
                with rltrace.reward(f"{n}/{i}") as r: r.set(value=i)
            os._exit(0)
        os.waitpid(pid, 0)
        for i in range(500): rltrace.use(f"{n}/{i}", tokens=i)
        with rltrace.span("train"): pass
print("done")
"""


def test_some_samples_are_whole_and_the_others_nowhere(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    done = wrapped(tmp_path, "--out", "run", "--sample", "20%", "--", sys.executable, "job.py")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    run = rltrace.open_run(tmp_path / "run")
    ids = {identify(f"{n}/{i}"): i for n in range(4) for i in range(500)}
    kept = {one: i for one, i in ids.items() if one % 2**64 < 0.2 * 2**64}
    assert 300 < len(kept) < 500
    for query in (
        "SELECT trajectory, response_tokens FROM trajectories WHERE finish = 'stop'",
        "SELECT trajectory, value FROM rewards",
        "SELECT trajectory, tokens FROM uses",
    ):
        assert dict(run.sql(query).fetchall()) == kept
    spans = run.sql("SELECT count(*) FROM spans").fetchall()
    assert spans == [(4 * 502,)]  # all of them
    assert [p["what"] for p in run.problems if p["what"] != "no-gpu"] == []
    assert "20 % of the samples were recorded" in alarms(run)[0]


@pytest.mark.parametrize(("text", "share"), [("10%", 0.1), ("0.25", 0.25), (" 5 % ", 0.05)])
def test_shares(text: str, share: float) -> None:
    assert share_of(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "0", "100%", "many", "nan", "-5%", "1"])
def test_what_is_no_share_is_wrong_usage(text: str) -> None:
    with pytest.raises(RltraceError):
        share_of(text)
