"""`rltrace wrap --sample`: some samples whole, the same in every process; the others nowhere."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.analysis.activity import read_activity
from rltrace.analysis.alarms import alarms
from rltrace.analysis.gate.series import series_of
from rltrace.analysis.live.state import LiveState
from rltrace.analysis.meters.of_run import RunMeters
from rltrace.analysis.step_goodput import step_goodput
from rltrace.analysis.steps import Steps, find_steps
from rltrace.analysis.summary import summarize
from rltrace.analysis.trial import pace
from rltrace.hooks.identity import identify
from rltrace.report import markdown, verdict
from rltrace.report.live_frame import frame
from rltrace.report.prometheus import families
from rltrace.run.share_option import share_of
from rltrace.trace.errors import RltraceError
from rltrace.trace.run import Run
from tests.cli.conftest import invoke
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
    assert alarms(run) == ()  # somebody wanted it so


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fifth of the samples of a run; not to be written into."""
    folder = tmp_path_factory.mktemp("sampled")
    (folder / "job.py").write_text(JOB)
    done = wrapped(folder, "--out", "run", "--sample", "20%", "--", sys.executable, "job.py")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_what_all_samples_are_needed_for_is_not_told(sampled: Path) -> None:
    found = summarize(rltrace.open_run(sampled))
    some = "only 20 % of the samples were recorded (--sample)"
    assert verdict.headline(found) == f"Cannot tell which wall binds: {some}"
    assert found.verdict.alarms == ()
    assert found.verdict.fixes == ()
    assert found.verdict.queues is None
    assert not any(wall.cost.known for wall in found.verdict.walls)
    assert {wall.missing for wall in found.verdict.walls} == {("a run without `--sample`",)}
    assert (found.binding.confidence, found.binding.because) == ("insufficient evidence", some)
    assert found.signal is None
    assert (found.tail.lengths, found.tail.causes, found.tail.slots) == (None, None, None)
    assert found.critical_path is not None
    assert not found.critical_path.is_traced
    assert found.goodput is not None
    trained = found.goodput.trained
    assert trained.zero_advantage_tokens is None
    assert trained.unknown_advantage_tokens == trained.tokens > 0
    text = markdown.render(found)
    assert "20 % of the samples were recorded (--sample): goodput" in text
    for wrong in ("Repair that", "sets the pace", "teach nothing more", "holds the step up most"):
        assert wrong not in text, wrong


def test_counts_are_scaled_to_all_samples(sampled: Path) -> None:
    run = rltrace.open_run(sampled)
    had = run.sql("SELECT count(*), sum(response_tokens) FROM trajectories").fetchall()
    samples, tokens = (5 * int(value) for value in had[0])
    found = summarize(run, predict=False)
    assert found.run.sampled_share == 0.2
    assert found.goodput is not None
    assert found.goodput.generated_samples == samples
    assert found.goodput.generated_tokens == tokens
    whole = sum(4 * i for i in range(500))
    assert found.goodput.generated_tokens == pytest.approx(whole, rel=0.25)
    series = series_of(run).columns
    assert series["generated_tokens"].sum() == pytest.approx(tokens)
    assert series["trained_tokens"].sum() == pytest.approx(tokens)
    assert "useful_tokens" not in series  # that takes whole groups
    assert math.isnan(pace(run).effective_tokens_per_s)
    assert sum(step.trained_tokens for step in step_goodput(run, _steps(run))) == tokens
    live = LiveState(sampled, last=100)
    live.poll()
    window = live.snapshot().window
    assert window is not None
    assert window.trained == found.goodput.trained
    assert sum(step.generated_tokens for step in window.recent) == tokens
    shown = "\n".join(line.plain for line in frame(live.snapshot(), 160, 40))
    assert "scaled from 20 % (--sample)" in shown
    meters = RunMeters(sampled)
    meters.look()
    values = families(meters)
    assert sum(values["rltrace_generated_tokens_total"].values()) == tokens
    assert "rltrace_useful_tokens_total" not in values


def _steps(run: Run) -> Steps:
    activity = read_activity(run)
    return find_steps(run, (activity.first_ns, activity.last_ns))


def test_nothing_is_predicted_from_some_of_the_samples(sampled: Path) -> None:
    done = invoke("whatif", sampled)
    assert done.exit_code == 3, done.output
    assert "only 20 % of the samples were recorded (--sample)" in done.output
    assert "of 20 % of the samples (--sample)" in invoke("info", sampled).output


@pytest.mark.parametrize(("text", "share"), [("10%", 0.1), ("0.25", 0.25), (" 5 % ", 0.05)])
def test_shares(text: str, share: float) -> None:
    assert share_of(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "0", "100%", "150%", "many", "nan", "-5%", "1"])
def test_what_is_no_share_is_wrong_usage(text: str) -> None:
    with pytest.raises(RltraceError, match="above 0 and below 100 %"):
        share_of(text)
