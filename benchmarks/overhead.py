"""What tracing costs a real job: the demo's training steps, traced against untraced.

    python -m benchmarks.overhead [--launches 8] [--pairs 25] [--json]

Two jobs are up at once, one of them under `rltrace wrap`, with the same seed and a policy that does
not change, and so with the same work in each step. They take turns, one step each, in an order that
reverses every time (A B B A), while the other waits: what disturbs the machine for longer than a
step disturbs both. A pair's figure is the ratio of the two times of one step. Two untraced jobs
differ too, by up to two percent for as long as they are up (where their memory lies): so a launch
has one figure, the middle of its pairs, and the interval is that of several launches. The agent of
the traced job runs throughout, so its own CPU is given beside the ratio.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

import rltrace
from benchmarks.measuring import (
    Check,
    Result,
    Spread,
    middle_means,
    ratio_interval,
    spread,
)
from rltrace.testing.inside.analysis import summarize

TRACED, UNTRACED, CONTROL = "traced", "untraced", "untraced, too"
WARM_UP = 5  # steps of each job before the first pair


@dataclass(frozen=True)
class Step:
    """A step that was taken."""

    seconds: float
    tokens: int


Paced = Callable[[int, int], list[str]]
"""Descriptor and steps to the module, with its arguments, of a job that waits before each step and
tells the descriptor of each in a line of JSON (`benchmarks.paced_job`)."""


def demo(descriptor: int, steps: int) -> list[str]:
    """The demo's job."""
    return ["benchmarks.paced_job", str(descriptor), str(steps), "0"]


class Job:
    """A training job that waits before each step."""

    def __init__(self, command: list[str], paced: Paced, steps: int, log: Path) -> None:
        self._log = log
        reports, descriptor = os.pipe()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, sys.executable, "-m", *paced(descriptor, steps)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[descriptor],
                text=True,
            )
        os.close(descriptor)
        self._reports = os.fdopen(reports)

    def first_step(self) -> Step:
        """Waits for the step that every job takes when it is up."""
        line = self._reports.readline()
        if not line:
            raise click.ClickException(f"the job ended by itself:\n{self._log.read_text()[-2000:]}")
        told: dict[str, Any] = json.loads(line)
        return Step(told["seconds"], told["tokens"])

    def step(self) -> Step:
        """Has the job take one step."""
        self._go()
        return self.first_step()

    def finish(self) -> None:
        """Lets the job end after its last step."""
        self._go()
        self._process.wait()

    def end(self) -> None:
        """Ends the job, wherever it stands."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._reports.close()

    def _go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@contextmanager
def jobs(folder: Path, paced: Paced, steps: int, names: Sequence[str]) -> Iterator[list[Job]]:
    """Jobs that are traced or not, by name, all after their warm-up."""
    wrap = [sys.executable, "-m", "rltrace", "wrap", "--out", str(folder / "run"), "--"]
    with ExitStack() as stack:
        found = []
        for name in names:
            job = Job(wrap if name == TRACED else [], paced, steps, folder / f"{name}.log")
            stack.callback(job.end)
            job.first_step()
            found.append(job)
        for _ in range(WARM_UP - 1):
            for job in found:
                job.step()
        yield found


def agent_cpu_s(run: Path) -> float:
    """CPU seconds so far of the agent of a run that is still going on."""
    for path in (run / "process").glob("*.json"):
        told = json.loads(path.read_text())
        if told.get("role") == "agent":
            fields = Path(f"/proc/{told['pid']}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    raise click.ClickException("the traced job has no agent")


@dataclass
class Launch:
    """What one launch of the jobs took, by name, and what the traced one says that it costs."""

    taken: dict[str, list[Step]]
    ratio: float = 0.0
    control: float = 1.0
    agent_share: float = 0.0  # of a core
    events: float = 0.0  # a step
    event_ns: float = 0.0
    own: float = 0.0  # part of a step, by the report's own-cost line

    @classmethod
    def of(cls, paced: Paced, pairs: int, names: Sequence[str]) -> Launch:
        """Launches the jobs in this order. Errors: `click.ClickException` where one ends."""
        found = cls({name: [] for name in names})
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with jobs(folder, paced, WARM_UP + pairs, names) as up:
                cpu_s = agent_cpu_s(folder / "run")
                turns = list(zip(up, found.taken.values(), strict=True))
                for nth in range(pairs):
                    for job, steps in turns[:: -1 if nth % 2 else 1]:
                        steps.append(job.step())
                cpu_s = agent_cpu_s(folder / "run") - cpu_s
                for job in up:
                    job.finish()
            cost = summarize(rltrace.open_run(folder / "run")).own_cost
        traced, untraced = found.taken[TRACED], found.taken[UNTRACED]
        found.ratio = _ratio(traced, untraced)
        if CONTROL in found.taken:
            found.control = _ratio(found.taken[CONTROL], untraced)
        found.agent_share = cpu_s / sum(s.seconds for all_ in found.taken.values() for s in all_)
        count, step_s = WARM_UP + pairs, float(np.median([s.seconds for s in traced]))
        found.events, found.event_ns = cost.events / count, cost.event_cost_ns
        found.own = cost.cpu_s / count / step_s
        return found


def compare(
    paced: Paced, launches: int, pairs: int, title: str, most: float, control: bool = False
) -> Result:
    """Step time traced / untraced of so many pairs of steps in each of so many launches, with its
    upper bound held to `most`. `control`: beside a second untraced job, to show what two processes
    differ by on their own. Errors: `click.ClickException` where a job ends by itself."""
    names = [UNTRACED, TRACED, *([CONTROL] if control else [])]
    found = [Launch.of(paced, pairs, names[:: -1 if n % 2 else 1]) for n in range(launches)]
    ratio, low, high = ratio_interval([one.ratio for one in found])
    own = float(np.mean([one.own for one in found]))
    result = Result(title, "ms")
    taken = {name: [step for one in found for step in one.taken[name]] for name in names}
    result.rows = {name: milliseconds(steps) for name, steps in taken.items()}
    same = sum(a.tokens == b.tokens for a, b in zip(taken[TRACED], taken[UNTRACED], strict=True))
    result.notes = {
        f"ratio of {launches} launches": _said(ratio, low, high),
        "pairs that generated the same number of tokens": f"{same} of {launches * pairs}",
        "events a step": (
            f"{np.mean([one.events for one in found]):,.0f}, in the mean "
            f"{np.mean([one.event_ns for one in found]):,.0f} ns each"
        ),
        "the report's own-cost line, of a step": f"{own:.2%}",
        "CPU of the node's agent / wall": (
            f"{np.mean([one.agent_share for one in found]):.3%} of one core"
        ),
    }
    if control:
        two = _said(*ratio_interval([one.control for one in found]))
        result.notes["ratio of two untraced"] = two
    outside = max(low - 1 - own, own - (high - 1), 0.0)
    result.checks = [
        Check("step traced / untraced, upper 95 % bound", high, most, "", low, high),
        Check("the report's own-cost line, of a step", own, 0.01, ""),
        Check("how far that is outside of the interval", outside, 0.0, ""),
    ]
    return result


@click.command()
@click.option("--launches", default=8, show_default=True)
@click.option("--pairs", default=25, show_default=True, help="Steps of each job and launch.")
@click.option("--control", is_flag=True, help="Beside a second untraced job.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(launches: int, pairs: int, control: bool, as_json: bool) -> None:
    """Step time of the demo, traced / untraced; exits 1 when a limit is missed."""
    result = compare(demo, launches, pairs, "A step of the demo", 1.03, control)
    sys.exit(result.finish(as_json))


def _ratio(ours: Sequence[Step], theirs: Sequence[Step]) -> float:
    """The mean of the middle 60 % of the ratios of two jobs' steps."""
    ratios = np.array([a.seconds / b.seconds for a, b in zip(ours, theirs, strict=True)])
    return float(middle_means(ratios))


def _said(ratio: float, low: float, high: float) -> str:
    # The upper end of the two-sided 90 % interval is the one-sided 95 % bound.
    return f"{ratio:.4f}, 90 % {low:.4f} to {high:.4f}"


def milliseconds(steps: list[Step]) -> Spread:
    """The spread of some steps' times."""
    return spread([s.seconds * 1000 for s in steps])


if __name__ == "__main__":
    main()
