"""The report on terminals of several widths, and of runs of all kinds."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from rltrace.analysis.summary import Summary, summarize
from rltrace.report import terminal
from tests.analysis.handmade import process, run_of, turns
from tests.report.summaries import KINDS, Summaries


def rendered(found: Summary, width: int, tty: bool = False) -> str:
    out = io.StringIO()
    terminal.render(found, Console(file=out, width=width, force_terminal=tty))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("kind", KINDS)
def test_it_fits_the_width_and_at_most_100_columns(
    summary: Summaries, kind: str, width: int
) -> None:
    lines = rendered(summary(kind), width).splitlines()
    too_long = [line for line in lines if cell_len(line) > min(width, 100)]
    assert not too_long
    assert "nan" not in "\n".join(lines).lower().split()


def test_the_verdict_comes_first_and_every_part_is_there(summary: Summaries) -> None:
    text = rendered(summary("async"), 100)
    assert "rollout (τ_R) binds: rollout decode is the wall" in text.splitlines()[1]
    parts = [
        "Where the step goes",
        "When each stage ran in step",
        "Tail",
        "Staleness of what was trained on",
        "Weight movement",
        "Goodput",
        "Not seen, and what tracing cost",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    for words in (
        "unattributed",
        "useful tokens per GPU-second",
        "indicative list price of 2026-05-20",
        "max(τ_R + τ_V, τ_ref + τ_old + τ_T) + exposed τ_S",
        "rltrace's own cost",
        "unknown",  # the lag of samples whose version nobody recorded
    ):
        assert words in " ".join(text.split())


@pytest.mark.parametrize(
    ("rollouts_s", "words"),
    [
        (
            [6, 4.1] * 4,
            [
                "rollout (τ_R) and train (τ_T) cannot be told apart: either may bind",
                "train is exposed for 4.95 s of a 10.0 s step",
                "the most of any stage in 4 of 8 steps",
                "rollout minus train: 100 ms in the mean",
                "which holds 0",
            ],
        ),
        (
            [4.9, 9] * 9 + [4.9],
            ["cannot be told apart", "9 of 19", "10 of 19", "but rollout leads in fewer steps"],
        ),
        (
            [5.01, 4.99] * 6,
            ["bind together: rollout decode and learner FLOPs + memory are the walls"],
        ),
        ([4.9, 9, 9] * 4, ["rollout (τ_R) may bind, but the evidence is weak", "8 of 12 steps"]),
    ],
)
def test_a_verdict_says_how_sure_it_is(
    tmp_path: Path, rollouts_s: list[float], words: list[str]
) -> None:
    found = summarize(run_of(tmp_path, process("driver", *turns(*rollouts_s))))
    text = " ".join(rendered(found, 100).replace("│", "").split())
    for phrase in words:
        assert phrase in text


def test_a_pipe_gets_no_escape_codes_and_a_terminal_gets_colour(summary: Summaries) -> None:
    assert "\x1b" not in rendered(summary("colocated"), 80)
    assert "\x1b" in rendered(summary("colocated"), 80, tty=True)


def test_on_cpu_goodput_is_by_core_and_has_no_dollars(summary: Summaries) -> None:
    text = rendered(summary("on CPU"), 100)
    assert "useful tokens per core-second" in text
    assert "No dollar figure" in text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("empty", ["no stage was seen", "No span of any stage was recorded."]),
        ("no steps", ["No step was recorded: the whole run is shown as one window."]),
        ("one step", ["1 steady step, at least 3 are needed"]),
        ("crashed", ["the job failed (exit code 1)", "torn-file × 2", "aligned within"]),
        (
            "hung",
            ["(signal 9)", "step 1 in progress since 3 min 18 s", "without a sign of life"],
        ),
        ("many lags", ["0 to 3", "36 to 39"]),
    ],
)
def test_what_went_wrong_is_said(summary: Summaries, kind: str, words: list[str]) -> None:
    text = " ".join(rendered(summary(kind), 100).split())
    for phrase in words:
        assert phrase in text
