"""Nothing changes where torch.compile, CUDA graphs or a profiler are beside rltrace.

    python -m benchmarks.gpu.beside [--cpu] [--json FILE] [--forms eager,compile]

A small training step (`beside_job`): eager, compiled, compiled with CUDA graphs, and captured as
one by hand; each untraced, traced, and traced while torch.profiler records. Losses and weights have
to be equal bit by bit, and so has what torch.compile did: graphs, breaks, compilations. Then
`rltrace timeline --torch-profile`: in the job each span encloses a record_function of the same
extent, so the two have to lie on each other; and on CUDA, kernels launched in a span that ends with
a synchronise have to lie inside it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.beside_job import BLOCK, COMPILED, FORMS
from benchmarks.gpu.findings import Findings, python, run_child, wrapped
from benchmarks.gpu.slices import Slice, slices_of

UNTRACED, TRACED, PROFILED = MODES = ("untraced", "traced", "profiled")
STEPS = 18
LIMIT_US = 50.0
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_USUAL = {"no-gpu", "inside-torch-compile", "version-untested"}
"""Problems of a run that say what is so, and not what went wrong."""


@dataclass
class Tries:
    """What came of one form of the step, by mode, in `folder`."""

    form: str
    folder: Path
    told: dict[str, dict[str, Any]] = field(default_factory=dict)

    def path(self, mode: str, kind: str) -> Path:
        """Where the job writes what it says (`json`), its `profile`, or is recorded (`run`)."""
        return self.folder / f"{self.form}-{mode}.{kind}"


class Beside:
    """Runs the jobs and holds what they say against each other."""

    def __init__(self, findings: Findings, on_cuda: bool, folder: Path) -> None:
        self.findings, self.on_cuda, self.folder = findings, on_cuda, folder
        # Kernels that are compiled once are the same in all of a form's children. A few compilers a
        # child: they would be as many as there are cores, for each of those that run at a time.
        self._environment = {
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "4" if on_cuda else "1",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
        }

    def look(self, forms: Sequence[str]) -> None:
        """All forms: beside each other where there is a device, and cores for that. The untraced
        ones are first, and compile what the others find compiled."""
        tries = [Tries(form, self.folder) for form in forms]
        most = 2 * len(forms) if self.on_cuda else 1
        for modes, at_once in (((UNTRACED,), max(most, 2)), ((TRACED, PROFILED), most)):
            with ThreadPoolExecutor(at_once) as pool:
                wave = [pool.submit(self._try, one, mode) for mode in modes for one in tries]
            for job in wave:
                job.result()
        with ThreadPoolExecutor(most) as pool:
            list(pool.map(self._line_up, tries))
        for one in tries:
            self._compare(one)

    def _try(self, one: Tries, mode: str, again: str = "") -> None:
        with self.findings.part(f"{one.form}, {mode}{again}"):
            out = one.path(mode + again, "json")
            options: list[object] = ["--form", one.form, "--out", out, "--steps", STEPS]
            options += ["--device", "cuda" if self.on_cuda else "cpu"]
            options += [] if self.on_cuda else ["--blocks", 1]
            if mode == PROFILED:
                options += ["--profile", one.path(mode, "profile.json")]
            command = python("benchmarks.gpu.beside_job", *options)
            if mode != UNTRACED:
                command = wrapped(one.path(mode, "run"), command)
            limit_s = min(self.findings.left_s, 45.0)
            child = run_child(command, limit_s, self._environment).checked()
            one.told[mode + again] = {**json.loads(out.read_text()), "took_s": child.took_s}

    def _compare(self, one: Tries) -> None:
        """Whether a traced job is the one that it was."""
        self.findings.figures[one.form] = one.told
        for mode in (TRACED, PROFILED):
            if mode not in one.told or UNTRACED not in one.told:
                self.findings.skip(f"{one.form}, {mode}: the same", "a child failed")
                continue
            before, now = one.told[UNTRACED]["equal"], one.told[mode]["equal"]
            other = [key for key in before if before[key] != now[key]]
            found = f"{len(before['losses'])} losses bit by bit, {_counted(before)}"
            if other and self.findings.left_s > 10:
                found = f"differ: {', '.join(other)}; {self._untraced_twice(one)}"
            self.findings.check(f"{one.form}, {mode}: the same", not other, found)
            with self.findings.part(f"{one.form}, {mode}: recorded"):
                self._recorded(one, mode)

    def _untraced_twice(self, one: Tries) -> str:
        """Whether the job is the same as itself: where it is not, the difference is not ours."""
        again = ", again"
        if UNTRACED + again not in one.told:
            self._try(one, UNTRACED, again)
        if UNTRACED + again not in one.told:
            return "untraced it could not be run again"
        is_same = one.told[UNTRACED]["equal"] == one.told[UNTRACED + again]["equal"]
        return f"untraced twice it is {'the same' if is_same else 'not the same either'}"

    def _recorded(self, one: Tries, mode: str) -> None:
        """Every span outside of graphs is there, and nothing went wrong."""
        import rltrace

        run = rltrace.open_run(one.path(mode, "run"))
        rows = run.sql("SELECT split_part(name, ' ', 1), count(*) FROM spans GROUP BY 1").fetchall()
        spans = dict(rows)
        parts = ("replay",) if one.form == "cuda-graph" else ("forward", "backward", "update")
        wrong = {p["what"]: str(p.get("detail", p.get("target"))) for p in run.problems}
        wrong = {what: said for what, said in wrong.items() if what not in _USUAL}
        whole = all(spans.get(part) == STEPS for part in parts) and spans.get("step") == STEPS
        whole &= not one.told[UNTRACED]["traced"] and one.told[mode]["traced"]
        if one.form == "eager":
            whole &= spans.get(BLOCK, 0) >= STEPS
        if one.form in COMPILED:
            whole &= "inside-torch-compile" in {p["what"] for p in run.problems}
        what = f"{one.form}, {mode}: recorded"
        said = ", ".join(f"{n} {name}" for name, n in sorted(spans.items()))
        self.findings.check(what, whole and not wrong, f"{said}{f'; {wrong}' if wrong else ''}")

    def _line_up(self, one: Tries) -> None:
        """What rltrace and torch.profiler have of the same moments."""
        if PROFILED not in one.told:
            return
        what = f"{one.form}: spans and record_function"
        with self.findings.part(what):
            drawn = self.folder / f"{one.form}.pftrace"
            profile = one.path(PROFILED, "profile.json")
            options = ("timeline", one.path(PROFILED, "run"), "-o", drawn)
            command = python("rltrace", *options, "--torch-profile", profile)
            run_child(command, min(self.findings.left_s, 30.0)).checked()
            slices = slices_of(drawn)
            offsets = offsets_us(slices)
            self.findings.figures[f"{one.form}: offsets"] = offsets
            worst = max(abs(us) for pair in offsets.values() for us in pair)
            median = float(np.median([abs(us) for pair in offsets.values() for us in pair]))
            found = f"{len(offsets)} pairs, |offset| median {median:.1f}, worst {worst:.1f} µs"
            self.findings.check(what, worst <= LIMIT_US, found)
            if self.on_cuda:
                self._kernels(one, slices)

    def _kernels(self, one: Tries, slices: Sequence[Slice]) -> None:
        what = f"{one.form}: kernels within their spans"
        overhang = overhangs_us(slices)
        self.findings.figures[f"{one.form}: overhang"] = overhang
        worst = max((us for _, us in overhang), default=float("nan"))
        found = f"{len(overhang)} kernels and copies, the furthest out by {worst:.1f} µs"
        self.findings.check(what, bool(overhang) and worst <= LIMIT_US, found)


def _counted(equal: dict[str, Any]) -> str:
    counts = equal["compiled"]
    return ", ".join(f"{counts[key]} {key}" for key in counts) if counts else "nothing compiled"


def paired(slices: Sequence[Slice]) -> dict[str, tuple[Slice, Slice]]:
    """By name, a span and the record_function in it, of one process; those of the first step under
    the profiler are left out, which its set-up is in. Errors: `ValueError` where there are none."""
    spans = {one.name: one for one in slices if one.category == "data"}
    seen = {one.name: one for one in slices if one.category == "user_annotation"}
    both = {name: (spans[name], seen[name]) for name in seen if name in spans}
    first = min((int(name.split()[-1]) for name in both), default=-1)
    found = {name: pair for name, pair in both.items() if int(name.split()[-1]) != first}
    if not found:
        kinds = dict(Counter(one.category for one in slices))
        raise ValueError(f"no span has a record_function of its name; slices: {kinds}")
    apart = [name for name, (span, mark) in found.items() if span.process != mark.process]
    if apart:
        raise ValueError(f"spans and record_functions stand in two processes: {apart[:3]}")
    return found


def offsets_us(slices: Sequence[Slice]) -> dict[str, tuple[float, float]]:
    """By name, how much later a record_function begins than its span, and ends before it: both are
    some microseconds where the two are on one clock."""
    return {
        name: ((mark.start_ns - span.start_ns) / 1e3, (span.end_ns - mark.end_ns) / 1e3)
        for name, (span, mark) in paired(slices).items()
    }


def overhangs_us(slices: Sequence[Slice]) -> list[tuple[str, float]]:
    """Of what ran on the device by a launch within a span: its name, and how far it lies out of
    it, in µs; below 0: it lies inside."""
    spans = sorted((span for span, _ in paired(slices).values()), key=lambda one: one.start_ns)
    starts = np.array([one.start_ns for one in spans])
    launch = {one.correlation: one for one in slices
              if one.category in _LAUNCHES and one.correlation >= 0}  # fmt: skip
    found = []
    for one in slices:
        launched = launch.get(one.correlation) if one.category in _ON_DEVICE else None
        if launched is None:
            continue
        at = int(np.searchsorted(starts, launched.start_ns, side="right")) - 1
        if at >= 0 and launched.end_ns <= spans[at].end_ns:
            out_ns = max(spans[at].start_ns - one.start_ns, one.end_ns - spans[at].end_ns)
            found.append((one.name, out_ns / 1e3))
    return found


def compiler() -> str:
    """The C++ compiler that torch.compile would take on a CPU; empty where there is none."""
    named = (os.environ.get("CXX", ""), "g++", "c++", "clang++")
    return next((found for name in named if name and (found := shutil.which(name))), "")


def on_cuda(findings: Findings) -> bool:
    """Whether torch sees a device; asked in a child, so that this process holds none."""
    said = ""
    with findings.part("a device"):
        asked = "import torch; print(torch.__version__, torch.cuda.is_available())"
        child = run_child([sys.executable, "-c", asked], 40.0).checked()
        findings.figures["torch"], said = child.out.split()[-2:]
    return said == "True"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Is a traced job the same beside torch's own?")
    parser.add_argument("--cpu", action="store_true", help="the forms that need no device")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    findings = Findings("beside", 58.0 if asked.cpu else 74.0)
    cuda = not asked.cpu and on_cuda(findings)
    if not asked.cpu and not cuda:
        findings.check(
            "a device", False, "torch sees no CUDA device: --cpu is for a machine without"
        )
    forms = [form for form in FORMS if form in asked.forms.split(",")]
    without = {"reduce-overhead": "it needs CUDA", "cuda-graph": "it needs CUDA"}
    if not compiler():
        without["compile"] = "torch.compile needs a C++ compiler on a CPU, and there is none"
    for form in [form for form in forms if not cuda and form in without]:
        findings.skip(form, without[form])
        forms.remove(form)
    if not cuda:
        findings.skip("kernels within their spans", "no CUDA device")
    with tempfile.TemporaryDirectory() as folder:
        if forms:
            Beside(findings, cuda, Path(folder)).look(forms)
        return findings.finish(asked.json)


if __name__ == "__main__":
    sys.exit(main())
