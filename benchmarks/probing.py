"""Does delaying the stage of a wall show that it holds the step up, as sharply as it must?

    python -m benchmarks.probing [NAME ...] [--steps N] [--seed 1] [--json]

Runs the jobs of examples/walls/ that are walls of a stage under `rltrace wrap --probe`. The probe's
interval for the stage's exposed part (how much of a delay the step felt) must have a half-width of
at most 0.15, and that for its share of the step must hold the share that the report computes. Where
the interval is not as sharp, the job runs again, with as many steps as its report asks for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

import rltrace
from benchmarks.measuring import Check, Result
from benchmarks.walls import FILES, ROOT, ended_well
from rltrace.testing.inside.analysis import HALF_WIDTH, Probe, ProbedStage, Summary, summarize

STAGE_OF: Mapping[str, str] = {
    "rollout": "rollout",
    "env-reward": "reward",
    "environment": "env",
    "learner": "train",
    "weights": "sync",
    "long-tail": "rollout",
}
"""The walls that are stages, by file."""

STEPS: Mapping[str, int] = {
    "rollout": 32, "env-reward": 36, "environment": 48, "learner": 72, "weights": 32,
    "long-tail": 40,
}  # fmt: skip

BUDGET = "12.5%"
RUN_LIMIT_SECONDS = 1200
MOST_OF_IT = 0.6  # that a longer run may take by its steps, which are slower on a busy machine
TO_SPARE = 1.3  # more steps than asked for: the width of an interval is an estimate itself


@dataclass(frozen=True)
class Probed:
    """A wall's job under a probe: the whole summary, the probe, and the stage of the wall."""

    name: str
    summary: Summary
    probe: Probe
    stage: ProbedStage

    @property
    def holds(self) -> bool:
        """Whether the interval is sharp enough, and that of the share holds the computed one."""
        sharp = self.stage.stage_exposed_share.half_width <= HALF_WIDTH
        return sharp and not self.stage.contradicts and self.stage.stage_exposed_share.known

    def sentence(self) -> str:
        """The figures for people."""
        part, share = self.stage.stage_exposed_share, self.stage.share
        return (
            f"{self.stage.name}: exposed part {part.value:.2f} ± {part.half_width:.2f}, computed "
            f"{self.stage.computed_stage_exposed_share:.2f}; "
            f"share {share.value:.2f} ± {share.half_width:.2f}, computed "
            f"{self.stage.computed_share:.2f} ({self.probe.steps} steps)"
        )


def probe_wall(
    name: str, steps: int | None = None, seed: int = 1, out: Path | None = None
) -> Probed:
    """Runs a wall's job under a probe of all stages, once more where `steps` are not given and were
    too few; a run that is in `out` and ended well is taken instead. Errors: `ClickException` when
    it fails."""
    found = _probe(name, STEPS[name] if steps is None else steps, seed, out)
    more = found.stage.more_steps_for(HALF_WIDTH)
    if steps is not None or not more:
        return found
    fits = int(MOST_OF_IT * RUN_LIMIT_SECONDS / found.probe.step_s)
    longer = min(fits, round(TO_SPARE * (STEPS[name] + more)))
    if longer <= STEPS[name]:
        return found
    return _probe(name, longer, seed + 1, out and out.with_name(f"{out.name}-longer"))


def _probe(name: str, count: int, seed: int, out: Path | None) -> Probed:
    with tempfile.TemporaryDirectory() as folder:
        run = out or Path(folder, "run")
        if ended_well(run):
            return probed(name, run)
        options = ["--probe", "--probe-budget", BUDGET, "--probe-seed", str(seed)]
        job = [str(ROOT / "examples" / "train.py"), "--config", str(FILES / f"{name}.toml")]
        wrap = [sys.executable, "-m", "rltrace", "wrap", "--out", str(run), *options, "--"]
        done = subprocess.run(
            [*wrap, sys.executable, *job, "--steps", str(count)],
            env=os.environ | {"RAY_memory_monitor_refresh_ms": "0"},
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise click.ClickException(f"{name}: {done.stderr}")
        return probed(name, run)


def probed(name: str, run: Path) -> Probed:
    """What a run of a wall's job says. Errors: `ClickException` where its stage was not delayed."""
    summary = summarize(rltrace.open_run(run))
    stages = {} if summary.probe is None else {s.name: s for s in summary.probe.stages}
    if summary.probe is None or STAGE_OF[name] not in stages:
        raise click.ClickException(f"{name}: {STAGE_OF[name]} was not delayed")
    return Probed(name, summary, summary.probe, stages[STAGE_OF[name]])


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(STAGE_OF)))
@click.option("--steps", type=int, help="Of each job; by default as many as it takes.")
@click.option("--seed", default=1, show_default=True, help="Draws the dosed steps.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(names: tuple[str, ...], steps: int | None, seed: int, as_json: bool) -> None:
    """What delaying the stage of a wall says; exits 1 where it is not sharp or contradicts."""
    result = Result("Walls under a probe", "exposed part")
    for name in names or STAGE_OF:
        found = probe_wall(name, steps, seed)
        part, share = found.stage.stage_exposed_share, found.stage.share
        result.notes[name] = found.sentence()
        result.checks += [
            Check(f"{name}: half-width of the interval", part.half_width, HALF_WIDTH, ""),
            Check(
                f"{name}: computed share off the estimate",
                abs(found.stage.computed_share - share.value),
                share.half_width,
                "",
            ),
        ]
        click.echo(f"{name}: {found.sentence()}", err=True)
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
