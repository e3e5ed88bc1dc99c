"""What a report says of the framework's own figures, when asked and when not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rltrace.testing.handmade_runs import process, run_of, turns
from rltrace.testing.inside.analysis import ComparedFigure, Summary, summarize
from rltrace.testing.inside.report import figures_of, to_json
from tests.report.summaries import Summaries, rendered

NAN = float("nan")


def figure(name: str, own: float, true: float, **more: object) -> ComparedFigure:
    facts = {"unit": "s", "stages": ("rollout",), "is_logged": True, "steps": 8}
    facts |= {"ratio": own / true, "misleads": True, "reason": "a poll ends it"}
    return ComparedFigure(name=name, own_value=own, traced_value=true, **{**facts, **more})  # type: ignore[arg-type]


FIGURES = (
    figure("timing_s/gen", 2.02, 0.61),
    figure("timing_s/reward", 12e-6, 0.24, stages=("reward",), reason="only collects"),
    figure("timing_s/ref", 0.5, NAN, misleads=False, stages=("reference", "logprob")),
    figure("timing_s/step", 9, 10, misleads=False, stages=("step",), reason="a sum"),
    figure("bytes of an update", NAN, 322_304.0, unit="B", is_logged=False, misleads=False),
)


@pytest.fixture
def found(summary: Summaries) -> Summary:
    return replace(summary("colocated"), own_figures=FIGURES)


def test_each_has_both_figures_their_ratio_and_the_reason(found: Summary) -> None:
    lines = rendered(found, own_figures=True).splitlines()
    rows = [" ".join(line.split()) for line in lines]
    assert "timing_s/gen 2.02 s 610 ms rollout 3.3× 8" in rows
    assert "timing_s/reward 12.0 µs 240 ms reward 5e-05× 8" in rows
    assert "timing_s/ref 500 ms – reference ∪ logprob – 8" in rows
    assert "timing_s/step 9.00 s 10.0 s the step 0.9× 8" in rows
    assert "bytes of an update logs none 322 kB bytes sent – 8" in rows
    assert "timing_s/reward: only collects." in rows
    unasked = " ".join(rendered(found).split())
    assert unasked.count("“timing_s/gen” and “timing_s/reward” differ from what ran") == 1
    assert "logs none" not in unasked
    fine = replace(found, own_figures=FIGURES[2:])
    assert "--own-figures" not in rendered(found, own_figures=True) + rendered(fine)
    imported = replace(found, run=replace(found.run, imported="V1, JSON lines"))
    assert "Only the log is known" in rendered(imported, own_figures=True)


def test_json_has_them_always(found: Summary) -> None:
    gen, *_, size = to_json.render(found)["own_figures"]
    assert (gen["name"], gen["own_value"], gen["traced_value"], gen["unit"]) == (
        "timing_s/gen",
        2.02,
        0.61,
        "s",
    )
    assert (size["own_value"], size["traced_value"], size["is_logged"]) == (None, 322_304.0, False)


def test_the_adapter_of_the_runs_framework_is_asked(tmp_path: Path) -> None:
    run = run_of(tmp_path / "one", process("driver", *turns(5, 5)), framework="verl")
    first, *_, last = figures_of(run)
    assert (first.metrics, last.scale) == (("timing_s/gen",), 1 << 20)
    other = run_of(tmp_path / "two", process("driver", *turns(5, 5)), framework="another")
    assert figures_of(other) == ()
    assert summarize(other, figures=figures_of(other)).own_figures == ()
