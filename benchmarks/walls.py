"""Does each wall bind for the cause that its file in examples/walls/ gives? Take it away and see.

    python -m benchmarks.walls [NAME ...] [--pairs 3] [--no-control] [--json] [--write]

Each job runs with its cause, without it, and with its cause while another stage is relieved (the
file's `[control]`), in an order that reverses every time. A pair's figure is how many times better
the job is without: in time a step, or in goodput, as the file's `metric` says.
`--write` puts the figures into the files' headers.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

import rltrace
from benchmarks.measuring import Check, Result, ratio_interval, spread, take_turns

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "examples" / "walls"
LEAST_EFFECT = 1.3
RUN_LIMIT_SECONDS = 300
VARIANTS = ("with its cause", "without", "control")
UNITS = {"step": "ms a step", "goodput": "effective tokens/s"}


@dataclass(frozen=True)
class Wall:
    """A file of examples/walls/: settings of a job, and what is compared.

    `job`, `without` and `control` are settings; the latter two are laid over the first. The first
    `warm_up` steps are left out.
    """

    path: Path
    wall: str
    metric: str
    warm_up: int
    job: Mapping[str, Any]
    without: Mapping[str, Any]
    control: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path) -> Wall:
        """Reads a file."""
        return cls(path, **tomllib.loads(path.read_text(encoding="utf-8")))

    def settings(self, variant: str) -> dict[str, Any]:
        """The settings of a variant."""
        others = {"without": self.without, "control": self.control}
        return {**self.job, **others.get(variant, {})}

    def figure(self, ledger: Mapping[str, Any]) -> float:
        """Milliseconds a step (the median), or goodput: trained tokens, all of which had a signal,
        a second. A token counts by how near its policy was to the one in training: by the effective
        sample size of the step, (Σw)² / (n Σw²)."""
        steps = ledger["steps"][self.warm_up :]
        if self.metric == "step":
            return 1000 * float(np.median([step["seconds"] for step in steps]))
        tokens = sum(step["tokens_trained"] * (step["ess"] or 0.0) for step in steps)
        return float(tokens / sum(step["seconds"] for step in steps))

    def gain(self, figure: float, base: float) -> float:
        """How many times better `figure` is than `base`."""
        better, worse = (base, figure) if self.metric == "step" else (figure, base)
        return better / worse if worse else math.inf


def ended_well(run: Path) -> bool:
    """Whether a traced run is there, whole, and its job said that all was well."""
    return run.is_dir() and rltrace.open_run(run).meta.get("exit_code") == 0


@dataclass
class Runs:
    """A variant of a job, run again and again; keeps the ledgers."""

    wall: Wall
    variant: str
    ledgers: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self) -> float:
        """Runs the job once, in a process of its own. Errors: ClickException when it fails."""
        with tempfile.TemporaryDirectory() as folder:
            job, books = Path(folder, "job.toml"), Path(folder, "ledger.json")
            # Numbers, strings and booleans are the same in JSON and in TOML.
            settings = self.wall.settings(self.variant).items()
            job.write_text("[job]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in settings))
            train = ROOT / "examples" / "train.py"
            done = subprocess.run(
                [sys.executable, train, "--config", job, "--ledger", books],
                env=os.environ | {"RAY_memory_monitor_refresh_ms": "0"},
                capture_output=True,
                text=True,
                timeout=RUN_LIMIT_SECONDS,
                check=False,
            )
            if done.returncode:
                raise click.ClickException(f"{self.wall.path.stem}, {self.variant}: {done.stderr}")
            self.ledgers.append(json.loads(books.read_text()))
        figure = self.wall.figure(self.ledgers[-1])
        click.echo(f"{self.wall.path.stem}, {self.variant}: {figure:,.1f}", err=True)
        return figure

    def evidence(self) -> str:
        """What else the steps say: means over all steps after the warm-up."""
        steps = [s for ledger in self.ledgers for s in ledger["steps"][self.wall.warm_up :]]

        def mean(name: str) -> float:
            values = [step[name] for step in steps if step[name] is not None]
            return float(np.mean(values)) if values else math.nan

        length = mean("tokens_generated") / mean("samples")
        share = sum(s["tokens_trained"] for s in steps) / sum(s["tokens_generated"] for s in steps)
        lag = max((int(lag) for step in steps for lag in step["lags"]), default=0)
        rises = [reward_rise(ledger["steps"]) for ledger in self.ledgers]
        return (
            f"{length:.1f} tokens a sample, {share:.0%} of them trained on, lag up to {lag}, "
            f"{mean('clip_share'):.1%} clipped, ESS {mean('ess'):.2f}, "
            f"reward {mean('reward'):.2f}, rose by {float(np.median(rises)):.2f}"
        )


def reward_rise(steps: Sequence[Mapping[str, Any]]) -> float:
    """Mean reward of the last five steps minus the first five, of a ledger; NaN: none."""
    rewards = [step["reward"] for step in steps if step["reward"] is not None]
    return float(np.mean(rewards[-5:]) - np.mean(rewards[:5])) if rewards else math.nan


@dataclass(frozen=True)
class Finding:
    """What came of a wall: gains are factors, one a pair; above 1 is better."""

    wall: Wall
    figures: Mapping[str, list[float]]
    evidence: Mapping[str, str]

    def gains(self, variant: str) -> list[float]:
        """How many times better a variant was than the job with its cause, pair by pair."""
        pairs = zip(self.figures[variant], self.figures[VARIANTS[0]], strict=True)
        return [self.wall.gain(figure, base) for figure, base in pairs]

    def sentences(self) -> list[str]:
        """Figures for people."""
        unit = UNITS[self.wall.metric]
        middle = {name: float(np.median(values)) for name, values in self.figures.items()}
        base, without = middle[VARIANTS[0]], middle["without"]
        lines = [f"{base:,.0f} {unit}, without the cause {without:,.0f}: {told(self, 'without')}"]
        if "control" in middle:
            lines.append(
                f"another stage relieved {middle['control']:,.0f}: {told(self, 'control')}"
            )
        return lines


def told(finding: Finding, variant: str) -> str:
    """A gain with its interval."""
    gain, low, high = ratio_interval(finding.gains(variant))
    return f"{gain:.2f} times better (90 % {low:.2f} to {high:.2f})"


def measure(wall: Wall, pairs: int, control: bool) -> Finding:
    """Runs the variants of a wall in turns, with or without its control."""
    names = VARIANTS if wall.control and control else VARIANTS[:2]
    runs = {name: Runs(wall, name) for name in names}
    figures = take_turns(runs, pairs)
    return Finding(wall, figures, {name: run.evidence() for name, run in runs.items()})


def write(finding: Finding, pairs: int) -> None:
    """Puts the figures into the header of the file: the paragraph that begins with "Measured"."""
    path = finding.wall.path
    control = "" if "control" in finding.figures else " --no-control"
    command = f"`python -m benchmarks.walls {path.stem} --pairs {pairs}{control}`"
    lines = [f"# Measured by {command}:", *(f"#   {line}" for line in finding.sentences())]
    text, found = re.subn(
        r"^# Measured.*\n(#   .*\n)*",
        lambda _: "\n".join(lines) + "\n",
        path.read_text(),
        flags=re.M,
    )
    if not found:
        raise click.ClickException(f"{path} has no line that begins with '# Measured'")
    path.write_text(text)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--pairs", default=3, show_default=True)
@click.option("--control/--no-control", default=True, help="Relieve another stage as well.")
@click.option("--write", "writes", is_flag=True, help="Put the figures into the files' headers.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(names: tuple[str, ...], pairs: int, control: bool, writes: bool, as_json: bool) -> None:
    """What taking a wall's cause away gains; exits 1 where that is too little."""
    result = Result("Jobs at a wall", "; ".join(UNITS.values()))
    for name in names or sorted(path.stem for path in FILES.glob("*.toml")):
        if not (FILES / f"{name}.toml").exists():
            raise click.UsageError(f"there is no examples/walls/{name}.toml")
        finding = measure(Wall.of(FILES / f"{name}.toml"), pairs, control)
        result.rows |= {f"{name}, {v}": spread(taken) for v, taken in finding.figures.items()}
        result.notes[name] = "; ".join(finding.sentences())
        result.notes |= {f"{name}, {v}": told for v, told in finding.evidence.items()}
        # The upper end of the two-sided 90 % interval is the one-sided 95 % bound.
        worst = ratio_interval([1 / gain for gain in finding.gains("without")])[2]
        what = f"{name}: cost of a step or useful token without / with, upper 95 % bound"
        result.checks.append(Check(what, worst, 1 / LEAST_EFFECT, ""))
        if writes:
            write(finding, pairs)
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
