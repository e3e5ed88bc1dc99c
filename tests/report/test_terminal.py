"""The report on terminals of several widths, and of runs of all kinds."""

from __future__ import annotations

import io
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

import rltrace
from rltrace.testing.handmade_runs import at, process, rows, run_of, turns
from rltrace.testing.inside.analysis import Summary, summarize
from rltrace.testing.inside.report import Column, Grid, Section, units
from rltrace.testing.inside.report import run_description as run_lines
from rltrace.testing.inside.report import terminal_tables as printed
from rltrace.testing.inside.trace import PROBLEMS, Stage
from tests.report.summaries import KINDS, Summaries, rendered, words_of


@pytest.mark.parametrize("kind", KINDS)
def test_it_fits_the_width_and_at_most_100_columns(summary: Summaries, kind: str) -> None:
    for width in (*range(60, 101, 5), 200):
        lines = rendered(summary(kind), width).splitlines()
        assert not [line for line in lines if cell_len(line) > min(width, 100)]
        assert "nan" not in "\n".join(lines).lower().split()
        assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("rollouts_s", "words"),
    [
        ([6, 4.1] * 4, ["rollout", "training", "Cannot be told"]),
        ([4.9, 9] * 9 + [4.9], ["rollout", "68 %", "sparse reward"]),
        ([5.01, 4.99] * 6, ["each", "50 %", "sparse reward"]),
    ],
)
def test_a_verdict_says_how_sure_it_is(
    tmp_path: Path, rollouts_s: list[float], words: list[str]
) -> None:
    text = words_of(summarize(run_of(tmp_path, process("driver", *turns(*rollouts_s)))))
    assert [phrase for phrase in words if phrase not in text] == []


def test_what_is_incomplete_is_said_at_the_top(tmp_path: Path) -> None:
    work = (Stage.ROLLOUT, 0, 4)
    run = run_of(tmp_path, *(process("rollout", work, work, rank=rank) for rank in range(5)))
    said = {"what": "recording-stopped", "real_ns": at(7), "detail": "No space left on device"}
    for worker in run.processes:
        if worker.role == "rollout":
            (run.path / PROBLEMS / f"{worker.who}.jsonl").write_text(json.dumps(said) + "\n")
    whole = summarize(rltrace.open_run(run.path))
    text = words_of(whole)
    who = f"rollout (pid {run.processes[0].pid} on {run.processes[0].host})"
    warning = f"! recording stopped in {who} 7.00 s after the start (No space left on device)"
    assert text.index(warning) < text.index("Stages")
    assert text.count("recording stopped in rollout") == 3
    assert "recording stopped in 2 more processes" in text
    assert "recording-stopped" not in text
    assert whole.coverage.damaged == ()
    for segment in (run.path / "spans").iterdir():
        os.truncate(segment, segment.stat().st_size // 2)
    cut = summarize(rltrace.open_run(run.path))
    said = [line for line in run_lines.warnings(cut) if "damaged" in line]
    assert len(said) == 4
    assert said[0].startswith("what rollout (pid ")
    assert "recorded is cut or damaged (spans)" in said[0]
    assert said[-1].startswith("what 2 more processes recorded")


def test_a_cost_that_is_not_known_is_no_figure(summary: Summaries) -> None:
    found = summary("no steps")
    unknown = replace(found, own_cost=replace(found.own_cost, share=math.nan))
    assert "time is not known" in words_of(unknown)


def test_warm_up_is_told(tmp_path: Path) -> None:
    told = {1: "step 0 (10.0 s).", 2: "steps 0 and 1 (", 7: "the first 7 steps ("}
    for slow, which in told.items():
        found = in_turns(tmp_path / str(slow), *[10] * slow, *[5] * (30 - slow), every=1)
        assert f"Left out as warm-up: {which}" in words_of(found)


def in_turns(path: Path, *lengths_s: float, every: int = 4) -> Summary:
    """A run of steps of which every so many generates for half its time."""
    driver, now = process("driver"), 0.0
    for n, length_s in enumerate(lengths_s):
        middle, end = at(now + length_s / 2), at(now + length_s)
        driver.span((at(now), end), "step", Stage.STEP, n)
        if n % every == 0:
            driver.span((at(now), middle), "rollout", Stage.ROLLOUT, -1)
        driver.span((middle, end), "train", Stage.TRAIN, -1)
        now += length_s
    return summarize(run_of(path, driver))


def test_figures_of_whole_generations_say_which_steps_they_are_of(tmp_path: Path) -> None:
    whole = in_turns(tmp_path / "whole", *[10, 1, 1, 1] * 2)
    told = "4 steps. Measured: steps 0 to 7, 2 generations."
    assert told in words_of(whole)
    found = in_turns(tmp_path / "cut", *[10, 1, 1, 1] * 2, 10, 1)
    assert f"{told} Left out, as their generation is not whole: 8 and 9." in words_of(found)
    part = replace(whole, steps=replace(whole.steps, generations=0))
    assert "no generation is whole" in words_of(part)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("empty", ["no Python process was traced", "no event was recorded.", "None can be told"]),
        ("no steps", ["of the whole run"]),
        ("crashed", ["the job failed (exit code 1)", "torn-file (", "aligned within"]),
        (
            "hung",
            [
                "(signal 9, SIGKILL)",
                "when the job ended, for 3 min 18 s",
                "a sign of life",
            ],
        ),
        ("many lags", ["0 to 3", "36 to 39"]),
        ("on CPU", ["useful tokens per core-second", "US$ unknown"]),
    ],
)
def test_what_went_wrong_is_said(summary: Summaries, kind: str, words: list[str]) -> None:
    text = words_of(summary(kind))
    assert [phrase for phrase in words if phrase not in text] == []


OPTIONS = "--rollout.vllm_generate_batch_size=2048 --train.async_enable=true"


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_an_option_to_be_copied_is_never_broken(width: int) -> None:
    columns = (Column("fix"), Column("setting", copied=True), Column("per device", right=True))
    cells = ("more requests at once", OPTIONS, "+42 % (-15 to +136)")
    out, grid = io.StringIO(), Grid(columns, (cells, ("another move", units.UNKNOWN, "none")))
    printed.show(Section("What to do", grid=grid), Console(file=out, width=width))
    assert set(OPTIONS.split()) <= set(out.getvalue().split())
    assert "+42 % (-15 to +136)" in out.getvalue()
    assert all(cell_len(line) <= max(width, 45) for line in out.getvalue().splitlines())


def of_two_samples(path: Path, first: list[int], last: list[int], tokens: list[int]) -> str:
    """What is said of the lags of two samples trained on at version 5."""
    learner = process("learner", *turns(4, 4, 4, 4, 4))
    rows(learner, "trajectories", start_s=[1, 1], end_s=[2, 2], trajectory=[1, 2],
         first_version=first, last_version=last, response_tokens=tokens)  # fmt: skip
    rows(learner, "uses", time_s=[4, 4], trajectory=[1, 2], version=[5, 5], fate=[0, 0])
    shown = rendered(summarize(run_of(path, learner)))
    return shown.partition("Staleness")[2].partition("CAN I BELIEVE")[0]


def test_tokens_of_several_versions_are_shown_as_what_their_share_can_be(tmp_path: Path) -> None:
    shown = of_two_samples(tmp_path, [5, 3], [5, 5], [100, 300])
    assert "by token 0.750, between 0 and 1.50" in shown
    assert "50 % (25 to 100)" in shown  # of lag 0
    assert "25 % (0 to 75)" in shown  # of lag 1, at which no trajectory is by its first token


@pytest.mark.parametrize("unknown", [1, 2])
def test_tokens_whose_lag_nobody_knows_have_a_row(tmp_path: Path, unknown: int) -> None:
    """Their trajectories may have one all the same: it goes by the first token's version."""
    last = [5 if unknown == 1 else -1, -1]
    lines = of_two_samples(tmp_path, [5, 5], last, [100, 100]).splitlines()
    by_lag = {words[0]: words for words in map(str.split, lines) if words}
    zero, none = by_lag["0"], by_lag["unknown"]
    assert zero[-5:] == ["2", "100", "%", "50" if unknown == 1 else "0", "%"]
    assert none[-5:] == ["0", "0", "%", "50" if unknown == 1 else "100", "%"]
