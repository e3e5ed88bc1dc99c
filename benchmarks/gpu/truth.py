"""Are the spans true? What each stage of the GRPO loop took by the trace, against CUDA events that
the loop itself records around it.

    python -m benchmarks.gpu.truth [--steps 12] [--cpu] [--json]

Twice: as rltrace records it, and with the host's ends of spans only, to show what those would say.
On the CPU the loop's stamps are the host's clock, as the spans are.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

import rltrace
from benchmarks.gpu.grpo import SIZES, STAGES
from benchmarks.measuring import Check, Result, spread
from rltrace.testing.inside.analysis import train_mfu

WARM_UP = 3
LIMIT_S = 150
LEAST_S = 0.002
"""Of a stage that is held to the limit: below, the calls between two stamps count."""

MOST_OFF = 0.02

TAKEN = """
    SELECT step, stage, sum(end_ns - start_ns) / 1e9 FROM spans WHERE stage <> 'step' GROUP BY ALL
    UNION ALL
    SELECT version - 1, 'sync', sum(end_ns - start_ns) / 1e9 FROM syncs GROUP BY ALL"""


def trained(folder: Path, steps: int, cpu: bool, *more: str) -> tuple[Any, list[dict[str, Any]]]:
    """The run of the loop, and its own stamps of each step. Errors: `click.ClickException`."""
    run, stamps = folder / "run", folder / "stamps.jsonl"
    job = [sys.executable, "-m", "benchmarks.gpu.grpo", "--steps", str(steps), *more]
    job += ["--stamps", str(stamps), *(["--cpu"] if cpu else [])]
    wrap = [sys.executable, "-m", "rltrace", "wrap", "--out", str(run), "--", *job]
    folder.mkdir()
    done = subprocess.run(wrap, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise click.ClickException(f"the job ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return rltrace.open_run(run), [json.loads(line) for line in stamps.read_text().splitlines()]


def errors(run: Any, stamps: list[dict[str, Any]]) -> dict[str, tuple[list[float], list[float]]]:
    """By stage, seconds by the device in each step after the warm-up, and how far off the trace is
    as a share of that."""
    traced = {(step, stage): seconds for step, stage, seconds in run.sql(TAKEN).fetchall()}
    found: dict[str, tuple[list[float], list[float]]] = {stage: ([], []) for stage in STAGES}
    for step in stamps[WARM_UP:]:
        for stage, begun, ended in step["stages"]:
            true_s = ended - begun
            found[stage][0].append(true_s)
            off = traced.get((step["step"], stage), float("nan")) - true_s
            found[stage][1].append(off / true_s)
    return found


@click.command()
@click.option("--steps", default=12, show_default=True)
@click.option("--cpu", is_flag=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(steps: int, cpu: bool, as_json: bool) -> None:
    """Stages by the trace against the device's own; exits 1 when a limit is missed."""
    result = Result("Stages by the device's clock", "ms")
    with tempfile.TemporaryDirectory() as name:
        for kind, more in (("", []), ("host's ends: ", ["--host-ends"])):
            run, stamps = trained(Path(name) / (kind[:4] or "own"), steps, cpu, *more)
            for stage, (true_s, off) in errors(run, stamps).items():
                size = np.abs(off)
                said = f"off by {100 * float(np.median(size)):.2f} % in the median step, "
                said += f"{100 * float(np.max(size)):.2f} % at most"
                result.notes[f"{kind}{stage}"] = said
                if not kind:
                    result.rows[stage] = spread([1e3 * second for second in true_s])
                    if np.median(true_s) >= LEAST_S and not cpu:
                        what = f"{stage}, how far the trace is off, median"
                        result.checks.append(Check(what, float(np.median(size)), MOST_OFF, ""))
            if not kind:
                result.notes |= rates(run, stamps, cpu)
                seen = [stage for stage in STAGES if np.isnan(errors(run, stamps)[stage][1]).any()]
                missing = float(len(seen))
                result.checks.append(Check("stages without a row in a step", missing, 0, ""))
    sys.exit(result.finish(as_json))


def rates(run: Any, stamps: list[dict[str, Any]], cpu: bool) -> dict[str, str]:
    """Decode rate and MFU, by the trace and by the device; tokens that are trained on count."""
    steady = stamps[WARM_UP:]
    traced = {(step, stage): seconds for step, stage, seconds in run.sql(TAKEN).fetchall()}
    tokens = sum(step["tokens"] for step in steady)
    found = {}
    for stage in ("rollout", "train"):
        by_trace_s = sum(traced[step["step"], stage] for step in steady)
        true_s = sum(b - a for step in steady for name, a, b in step["stages"] if name == stage)
        if stage == "rollout":
            by_trace, by_events = tokens / by_trace_s, tokens / true_s
            found["decode"] = f"{by_trace:,.0f} tokens/s by the trace, {by_events:,.0f} by events"
            continue
        size = SIZES["tiny" if cpu else "0.5B"]
        passed = tokens * (size.prompt_tokens + size.new_tokens) / size.new_tokens
        peak, parameters = 989.0, steady[0]["parameters"]
        said = train_mfu(parameters, tokens, by_trace_s, 1, peak)
        true = train_mfu(parameters, passed, true_s, 1, peak)
        found["MFU of training, 6 FLOP a parameter and token"] = (
            f"{said:.2%} of the response's tokens by the trace; {true:.2%} with the prompts, which "
            "are passed, too"
        )
    return found


if __name__ == "__main__":
    main()
