"""What is said of jobs beside torch's own tools, where there is no GPU: the eager form of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.beside import offsets_us, overhangs_us
from benchmarks.gpu.findings import (
    FAILED,
    MISSED,
    OK,
    SKIPPED,
    TIMED_OUT,
    ChildFailed,
    Findings,
    python,
    run_child,
)
from benchmarks.gpu.slices import Slice
from tests.patience import PATIENCE_S, until

LINED_UP = "eager: spans and record_function"


@pytest.mark.slow
def test_a_traced_job_is_the_same_and_stands_under_its_profile(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = tmp_path / "found.json"
    run_child(python("benchmarks.gpu.beside", "--cpu", "--forms", "eager", "--json", found),
              PATIENCE_S)  # fmt: skip
    told = json.loads(found.read_text())
    assert told["errors"] == {}
    how = {row["what"]: row["how"] for row in told["rows"]}
    assert how.pop(LINED_UP) in (OK, MISSED)  # by a machine that does other work, too
    assert how.pop("kernels within their spans") == SKIPPED
    assert set(how) == {f"eager, {m}: {w}" for m in ("traced", "profiled")
                        for w in ("the same", "recorded")}  # fmt: skip
    assert set(how.values()) == {OK}
    losses = {mode: one["equal"]["losses"] for mode, one in told["figures"]["eager"].items()}
    assert len(set(losses["untraced"])) > 10, "it learns"
    assert losses["untraced"] == losses["traced"] == losses["profiled"]
    offsets = told["figures"]["eager: offsets"]
    assert len(offsets) == 3 * 11  # all parts of the steps under the profiler, but for the first
    assert all(-1e5 < us < 1e5 for pair in offsets.values() for us in pair), "on one clock"


def slice_(name: str, category: str, start: int, end: int, **more: int) -> Slice:
    return Slice(name, category, more.get("process", 1), start, end, more.get("correlation", -1))


MARKED = [
    slice_("forward 5", "data", 0, 9_000),
    slice_("forward 5", "user_annotation", 100, 8_900),  # the first is left out
    slice_("forward 6", "data", 10_000, 90_000),
    slice_("forward 6", "user_annotation", 12_000, 89_000),
    slice_("forward 6", "gpu_user_annotation", 30_000, 85_000),
    slice_("Optimizer.step", "user_annotation", 20_000, 30_000),
]


def test_offsets_are_of_what_has_one_name_in_one_process() -> None:
    assert offsets_us(MARKED) == {"forward 6": (2.0, 1.0)}
    with pytest.raises(ValueError, match="no span has"):
        offsets_us(MARKED[:2])
    elsewhere = slice_("forward 6", "user_annotation", 12_000, 89_000, process=2)
    with pytest.raises(ValueError, match="two processes"):
        offsets_us([*MARKED[:3], elsewhere])


def test_kernels_are_held_against_the_span_of_their_launch() -> None:
    launched = [
        slice_("cudaLaunchKernel", "cuda_runtime", 15_000, 16_000, correlation=1),
        slice_("inside", "kernel", 17_000, 80_000, correlation=1),
        slice_("cudaGraphLaunch", "cuda_runtime", 20_000, 21_000, correlation=2),
        slice_("late", "kernel", 30_000, 95_000, correlation=2),
        slice_("early", "gpu_memcpy", 3_000, 40_000, correlation=2),
        slice_("cudaLaunchKernel", "cuda_runtime", 95_000, 96_000, correlation=3),
        slice_("of no span", "kernel", 97_000, 99_000, correlation=3),
        slice_("of no launch", "kernel", 20_000, 30_000),
    ]
    assert overhangs_us([*MARKED, *launched]) == [("inside", -7.0), ("late", 5.0), ("early", 7.0)]


def test_a_part_that_fails_is_a_line_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = Findings("t", 10.0)
    with findings.part("one"):
        json.loads("no JSON")
    findings.check("another", True, "7")
    assert findings.finish(tmp_path / "deep" / "found.json") == 1
    told = json.loads((tmp_path / "deep" / "found.json").read_text())
    assert [(row["what"], row["how"]) for row in told["rows"]] == [("one", FAILED), ("another", OK)]
    assert "json.loads" in told["errors"]["one"]
    lines = capsys.readouterr().out.splitlines()
    assert any("JSONDecodeError" in line and line.startswith("one") for line in lines)
    fine = Findings("t", 10.0)
    fine.skip("a device", "none")
    assert fine.finish(None) == 0


def test_a_child_that_hangs_is_ended_with_what_it_started() -> None:
    program = "import os, time; os.fork(); print(os.getpid(), flush=True); time.sleep(1e6)"
    child = run_child([sys.executable, "-c", program], 3.0)
    assert child.code == TIMED_OUT
    until(lambda: not any(Path("/proc", pid).exists() for pid in child.out.split()))
    with pytest.raises(ChildFailed, match="too long"):
        child.checked()
    failed = run_child([sys.executable, "-c", "raise KeyError('x')"], PATIENCE_S)
    with pytest.raises(ChildFailed, match="exit code 1: KeyError: 'x'"):
        failed.checked()
