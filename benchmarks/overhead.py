"""What tracing costs a real job: the demo's training steps, traced against untraced.

    python -m benchmarks.overhead [--pairs 60] [--json]

Two jobs are up at once, one of them under `rltrace wrap`, with the same seed and a policy that does
not change, and so with the same work in each step. They take turns, one step each, in an order that
reverses every time (A B B A), while the other waits: what disturbs the machine for longer than a
step disturbs both. A pair's figure is the ratio of the two times of one step. The agent of the
traced job runs throughout, so its own CPU is given beside the ratio.
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
    interval,
    middle_means,
    spread,
)
from rltrace.testing.inside.trace import OpenedRun as Run

TRACED = "traced"
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


def costs_s(run: Run) -> tuple[int, list[float]]:
    """Events of the job's own processes, and what recording them cost each, by the run's own
    calibration; dearest first."""
    settings = run.meta["settings"]
    price_ns = {"spans": settings["event_cost_ns"]}
    others = ("trajectories", "rewards", "uses", "syncs", "samples")
    price_ns |= dict.fromkeys(others, settings["row_cost_ns"])
    counts = " UNION ALL ".join(
        f"SELECT process, count(*) AS events, {price} AS price FROM raw_{table} GROUP BY 1"
        for table, price in price_ns.items()
    )
    query = (
        f"SELECT sum(events), sum(events * price) / 1e9 AS cost_s FROM ({counts}) "
        "JOIN processes USING (process) WHERE role IS DISTINCT FROM 'agent' "
        "GROUP BY process ORDER BY cost_s DESC"
    )
    found = run.sql(query).fetchall()
    return sum(int(events) for events, _ in found), [float(cost) for _, cost in found]


def compare(paced: Paced, pairs: int, title: str, most: float, control: bool = False) -> Result:
    """Step time traced / untraced of so many pairs of steps, with its upper bound held to `most`.
    `control`: beside a second untraced job, to show what two processes differ by on their own.
    Errors: `click.ClickException` where a job ends by itself."""
    names = [TRACED, "untraced", *(["untraced, too"] if control else [])]
    taken: dict[str, list[Step]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with jobs(folder, paced, WARM_UP + pairs, names) as found:
            cpu = agent_cpu_s(folder / "run")
            turns = list(zip(found, taken.values(), strict=True))
            for nth in range(pairs):
                for job, steps in turns[:: -1 if nth % 2 else 1]:
                    steps.append(job.step())
            cpu = agent_cpu_s(folder / "run") - cpu
            for job in found:
                job.finish()
        events, costs = costs_s(rltrace.open_run(folder / "run"))

    traced, untraced = taken[TRACED], taken["untraced"]
    said, high = _ratio(traced, untraced)
    count = WARM_UP + pairs
    step_s = float(np.median([s.seconds for s in traced]))
    wall_s = sum(s.seconds for steps in taken.values() for s in steps)
    result = Result(title, "ms")
    result.rows = {name: milliseconds(taken[name]) for name in reversed(names)}
    same = sum(a.tokens == b.tokens for a, b in zip(traced, untraced, strict=True))
    result.notes = {
        "ratio of a pair": said,
        **({"ratio of two untraced": _ratio(taken[names[2]], untraced)[0]} if control else {}),
        "pairs that generated the same number of tokens": f"{same} of {pairs}",
        "events a step": (
            f"{events / count:,.0f}, in the mean {sum(costs) / events * 1e9:,.0f} ns each; "
            f"{sum(costs) / count / step_s:.2%} of a step, summed over {len(costs)} processes"
        ),
        "CPU of the node's agent / wall": f"{cpu / wall_s:.3%} of one core",
    }
    result.checks = [
        Check("step time traced / untraced, upper 95 % bound", high, most, ""),
        Check("events x cost / wall time, busiest process", costs[0] / count / step_s, 0.003, ""),
    ]
    return result


@click.command()
@click.option("--pairs", default=60, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(pairs: int, as_json: bool) -> None:
    """Step time of the demo, traced / untraced; exits 1 when a limit is missed."""
    sys.exit(compare(demo, pairs, "A step of the demo", 1.03).finish(as_json))


def _ratio(ours: Sequence[Step], theirs: Sequence[Step]) -> tuple[str, float]:
    """The ratio of two jobs' steps in words, and its upper 95 % bound."""
    ratios = np.array([a.seconds / b.seconds for a, b in zip(ours, theirs, strict=True)])
    # The upper end of the two-sided 90 % interval is the one-sided 95 % bound.
    low, high = interval(ratios, level=0.9, statistic=middle_means)
    ratio = float(middle_means(ratios))
    return f"{ratio:.4f} (mean of the middle 60 %), 90 % {low:.4f} to {high:.4f}", high


def milliseconds(steps: list[Step]) -> Spread:
    """The spread of some steps' times."""
    return spread([s.seconds * 1000 for s in steps])


if __name__ == "__main__":
    main()
