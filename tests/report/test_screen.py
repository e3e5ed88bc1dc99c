"""The default report: one screen, whatever the run is, and the line that `wrap` ends with."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len
from rich.console import Console

from rltrace import open_run
from rltrace.testing.handmade_runs import process, run_of, stating, turns
from rltrace.testing.inside.analysis import RunAnalysis, Summary, summarize
from rltrace.testing.inside.analysis import predict_Estimate as Estimate
from rltrace.testing.inside.report import screen
from rltrace.testing.inside.run import in_short, wrap
from tests.cli.conftest import invoke
from tests.report.summaries import KINDS, Summaries

FIXTURES = Path(__file__).parents[1] / "fixtures"
PICTURE = Path(__file__).parents[2] / "docs/pictures/report.svg"


def shown(found: Summary, width: int) -> list[str]:
    """The lines of the screen."""
    out = io.StringIO()
    screen.render(found, Console(file=out, width=width))
    return out.getvalue().splitlines()


STORED = [path.name for path in FIXTURES.iterdir() if path.is_dir()]


@pytest.mark.parametrize("kind", [*KINDS, *STORED])
@pytest.mark.parametrize("width", [80, 100, 200])
def test_it_is_one_screen(summary: Summaries, kind: str, width: int) -> None:
    stored = kind in STORED
    found = shown(summarize(open_run(FIXTURES / kind)) if stored else summary(kind), width)
    assert len(found) <= screen.MOST_LINES
    assert not [line for line in found if cell_len(line) > min(width, 100)]
    assert "nan" not in " ".join(found).lower().split()


def test_however_much_there_is_to_say_it_is_one_screen(summary: Summaries) -> None:
    found = summary("crashed")
    alarms = tuple(replace(found.health.alarms[0], says="word " * 60) for _ in range(20))
    many = replace(found, health=replace(found.health, alarms=alarms))
    for width in (80, 100):
        assert len(shown(many, width)) <= screen.MOST_LINES


@pytest.mark.parametrize("width", [80, 100])
def test_an_alarm_is_shown_whole_or_not_at_all(summary: Summaries, width: int) -> None:
    found = summary("crashed")
    alarm, says = found.health.alarms[0], "word " * 30 + "end"
    for count in (2, 3, 40):
        alarms = tuple(replace(alarm, says=says, kind="restart") for _ in range(count))
        lines = shown(replace(found, health=replace(found.health, alarms=alarms)), width)
        told = " ".join(" ".join(line for line in lines if line[:2] in ("! ", "  ")).split())
        whole = told.count(" ".join(says.split()))
        assert told.count("! word") == whole == min(count, whole)
        assert whole == count or (whole > 3 and len(lines) > screen.MOST_LINES - 5)


def test_what_to_change_breaks_no_option_cuts_no_risk_and_keeps_its_columns_apart(
    summary: Summaries,
) -> None:
    found = summary("colocated")
    option = "actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config.num_tokens=5"
    gain, risk = Estimate(1.001, 1.03, 11.0), " ".join(f"word{n}" for n in range(40))
    fix = replace(found.verdict.fixes[0], setting=option[:-2], value=5, printed=option, now=None,
                  risk=risk, gain=gain, goodput_gain=gain)  # fmt: skip
    steps = replace(found.steps, step_s=replace(found.steps.step_s, mean=3512.0))
    one = replace(found, steps=steps, verdict=replace(found.verdict, fixes=(fix,)))
    lines = shown(one, 80)
    assert len([line for line in lines if option in line]) == 2  # in "Try first" and in the list
    assert risk in " ".join(" ".join(lines).split())
    assert re.search(r"3,510 → 3,410 s  +\+3 % \(\+0 to \+1000\)  +\w", "\n".join(lines))


@pytest.mark.parametrize(("low", "may_lose"), [(0.68, True), (0.99, False), (1.05, False)])
def test_what_may_lose_is_no_first_advice(summary: Summaries, low: float, may_lose: bool) -> None:
    found = summary("colocated")
    fix = replace(found.verdict.fixes[0], goodput_gain=Estimate(low, 1.3, 1.92))
    lines = shown(replace(found, verdict=replace(found.verdict, fixes=(fix,))), 100)
    tries = [line for line in lines if line.startswith("  Try ")]
    assert len(tries) == 1
    assert ("Try first" not in tries[0]) == ("may be slower" in tries[0]) == may_lose


def test_it_has_the_wall_its_cost_and_the_time_of_each_stage(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", *turns(*[8, 8.2] * 6)))
    found = summarize(run)
    text = "\n".join(shown(found, 100))
    (first,) = found.verdict.binding
    assert f"{first.name} (without it: a step" in text
    rows = {line.split()[0]: line.split()[-2:] for line in text.splitlines() if "█" in line}
    assert rows == {"rollout": ["81", "%"], "train": ["19", "%"]}
    assert screen.in_short(RunAnalysis(run)).startswith("12 steps · 10.0 s a step · wall: ")


def test_the_command_prints_the_screen_one_line_or_all(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", *turns(*[8, 8.2] * 6))).path
    short, plain, full = (
        len(invoke("report", *words, run).output.splitlines())
        for words in (["--short"], [], ["--full"])
    )
    assert short == 1 < plain <= screen.MOST_LINES < full
    assert invoke("report", "--short", "--json", run).exit_code == 2


def test_wrap_ends_with_it_where_a_part_of_the_jobs_time_is_enough(tmp_path: Path) -> None:
    run = run_of(tmp_path, process("driver", *turns(*[8, 8.2] * 6)))
    assert in_short(run.path, 60.0) == f"{screen.in_short(RunAnalysis(run))} · "
    assert in_short(run.path, 0.1) == ""
    assert in_short(tmp_path / "nothing", 60.0) == ""


def test_wrap_waits_for_no_more_than_it_has_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a run with so many rows that a look at it takes long: what is known by then is said."""
    endless = "print('3 steps', flush=True); print('half', end='', flush=True); import time; "
    monkeypatch.setattr(wrap, "_LOOK_AT", f"{endless}time.sleep(10_000)")
    assert in_short(tmp_path, 5.0) == "3 steps · "


def test_a_job_that_was_not_recognised_is_told_what_to_type(tmp_path: Path) -> None:
    job = """
        class Policy:
            def update_weights(self): pass
        def one_step(): pass
        def sample_batch(): pass
        def other(): pass
    """
    (tmp_path / "loop.py").write_text(dedent(job))
    run = run_of(tmp_path, process("driver"), command=["python", "loop.py"], cwd=str(tmp_path))
    run = stating(run, {"adapter": ""})
    text = " ".join(" ".join(shown(summarize(run), 100)).replace("\\", "").split())
    hooks = ("one_step=step", "sample_batch=rollout", "Policy.update_weights=train")
    assert " ".join(f"--hook __main__:{hook}" for hook in hooks) + " -- python loop.py" in text
    calls = "def train_step(): return generate()\ndef generate(): pass\ndef grade(): pass\n"
    for body, stage in ((calls, "step"), (calls.replace("generate()\n", "0\n"), "train")):
        (tmp_path / "loop.py").write_text(body)
        assert f"__main__:train_step={stage}" in " ".join(shown(summarize(run), 200))
    (tmp_path / "loop.py").unlink()
    assert "--hook __main__:one_step" not in " ".join(shown(summarize(run), 100))


def test_the_picture_in_the_documentation_has_its_headings_and_labels(summary: Summaries) -> None:
    """`make pictures` draws it anew."""
    texts = " ".join(ElementTree.parse(PICTURE).getroot().itertext()).replace("\u00a0", " ")
    headings = r"^ *([A-Z][A-Z ]+[A-Z]\b|Wall|Try first:|predicted:)"
    named = {*re.findall(headings, "\n".join(shown(summary("colocated"), 100)), re.M)}
    assert len(named) == 6
    assert not {name for name in named if name not in texts}
