"""What `rltrace top` costs beside a live run: its share of a core, in tmux, on a real job.

    python -m benchmarks.top_cost [--rounds 12] [--run A_LIVE_RUN] [--json]

The built-in trainer trains under `rltrace wrap`; `rltrace top` watches it in a tmux session, at its
usual interval, on a small and a large screen in turns. A round's figure is the CPU time, user and
system, of `top`'s process over ten seconds. A machine that does other work may give `top` fewer
looks than one a second, so what one look costs is measured beside it, in this process.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console, Group

from benchmarks.measuring import Check, Result, spread
from rltrace.testing.inside.analysis import LiveState
from rltrace.testing.inside.report import frame
from rltrace.testing.inside.run import INTERVAL_S

LIMIT_PERCENT = 5.0
ROUND_S = 10.0
SCREENS = {"80 x 24": (80, 24), "200 x 50": (200, 50)}
STEPS_BEFORE = 12
PATIENCE_S = 900.0
RLTRACE = [sys.executable, "-c", "from rltrace.cli import main; main()"]
TRAINER = Path(__file__).parents[1] / "examples" / "train.py"
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def live_run(folder: Path, given: Path | None) -> Iterator[Path]:
    """The run that was given, or one of the built-in trainer that goes on and on."""
    if given is not None:
        yield given.absolute()
        return
    run = folder / "run"
    log = folder / "job.log"
    words = [*RLTRACE, "wrap", "--out", str(run), "--", sys.executable, str(TRAINER)]
    with log.open("wb") as output:
        job = subprocess.Popen(
            [*words, "--steps", "1000000"],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (run / "run.json").exists() or _steps(run) < STEPS_BEFORE:
            if job.poll() is not None or time.monotonic() > deadline:
                raise click.ClickException(f"the job does not train:\n{log.read_text()[-2000:]}")
            time.sleep(1)
        yield run
    finally:
        if job.poll() is None:
            job.send_signal(signal.SIGTERM)
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)


def _steps(run: Path) -> int:
    return LiveState(run).snapshot().totals.steps


class Tmux:
    """A tmux server with `rltrace top` in it."""

    def __init__(self, folder: Path, run: Path) -> None:
        self._base = ["tmux", "-f", "/dev/null", "-S", str(folder / "tmux")]
        command = ["env", f"PYTHONPATH={Path(__file__).parents[1]}", *RLTRACE, "top", str(run)]
        self._tmux("new-session", "-d", "-x", "80", "-y", "24", *command)
        self.pid = int(self._tmux("display-message", "-p", "-t", ":0", "#{pane_pid}"))

    def _tmux(self, *words: str) -> str:
        done = subprocess.run([*self._base, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def resize(self, width: int, height: int) -> None:
        """Gives the screen another size."""
        self._tmux("resize-window", "-t", ":0", "-x", str(width), "-y", str(height))

    def screen(self) -> str:
        """What stands on the screen."""
        return self._tmux("capture-pane", "-p", "-t", ":0")

    def cpu_s(self) -> float:
        """CPU time of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def close(self) -> None:
        """Ends the server."""
        subprocess.run([*self._base, "kill-server"], capture_output=True, check=False)


def look_ms(state: LiveState, console: Console) -> float:
    """CPU milliseconds of one look: reading, figures, a frame, and its characters."""
    began = time.thread_time_ns()
    state.poll()
    console.print(Group(*frame(state.snapshot(), *console.size)))
    return (time.thread_time_ns() - began) / 1e6


def measure(folder: Path, rounds: int, given: Path | None) -> Result:
    """Runs the job and everything beside it. Errors: `ClickException` when the job ends early."""
    result = Result("rltrace top beside a live run", "% of a core")
    with live_run(folder, given) as run:
        tmux = Tmux(folder, run)
        try:
            while " done" not in tmux.screen():
                time.sleep(0.5)
            state = LiveState(run)
            shares: dict[str, list[float]] = {name: [] for name in SCREENS}
            looks: dict[str, list[float]] = {name: [] for name in SCREENS}
            for nth in range(rounds):
                for name in list(SCREENS)[:: -1 if nth % 2 else 1]:
                    tmux.resize(*SCREENS[name])
                    _round(tmux, state, name, shares, looks)
            ended = state.snapshot()
            if ended.job.is_over or "running" not in tmux.screen():
                raise click.ClickException(f"the run has ended:\n{tmux.screen()}")
        finally:
            tmux.close()
    for name in SCREENS:
        result.rows[f"in tmux, {name}"] = spread(shares[name])
    for name in SCREENS:
        each = spread(looks[name])
        percent = each.median / INTERVAL_S / 10
        result.rows[f"one look a second, {name}"] = spread(
            [ms / INTERVAL_S / 10 for ms in looks[name]]
        )
        result.notes[name] = (
            f"a look takes {each.median:.1f} ms ({each.low:.1f} to {each.high:.1f})"
        )
        result.checks.append(Check(f"looks at {name}, median", percent, LIMIT_PERCENT, "%"))
        worst = result.rows[f"in tmux, {name}"].high
        result.checks.append(Check(f"tmux at {name}, 90 %", worst, LIMIT_PERCENT, "%"))
    result.notes["the job"] = (
        f"{ended.job.framework or 'the built-in trainer'}, {ended.totals.steps} steps, "
        f"{ended.processes} processes, {ended.totals.generated_samples:,} samples"
    )
    return result


def _round(
    tmux: Tmux,
    state: LiveState,
    name: str,
    shares: dict[str, list[float]],
    looks: dict[str, list[float]],
) -> None:
    width, height = SCREENS[name]
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, color_system="256"
    )
    began, before = time.monotonic(), tmux.cpu_s()
    while (lasted := time.monotonic() - began) < ROUND_S:
        looks[name].append(look_ms(state, console))
        time.sleep(INTERVAL_S)
    lasted = time.monotonic() - began
    shares[name].append(100 * (tmux.cpu_s() - before) / lasted)


@click.command()
@click.option("--rounds", default=12, show_default=True, help="Of each screen, ten seconds each.")
@click.option("--run", type=click.Path(path_type=Path), help="A live run to watch instead.")
@click.option("--json", "as_json", is_flag=True)
def main(rounds: int, run: Path | None, as_json: bool) -> None:
    """What `rltrace top` costs beside a live run."""
    if shutil.which("tmux") is None:
        raise click.ClickException("tmux is not installed: apt-get install tmux")
    with tempfile.TemporaryDirectory(prefix="rltrace-top-") as folder:
        sys.exit(measure(Path(folder), rounds, run).finish(as_json))


if __name__ == "__main__":
    main()
