"""Is the verdict right? Each wall of examples/walls/ is named, probed, and its fix tried.

    python -m benchmarks.prove [--only NAME ...] [--pairs 3] [--up-to 9] [--loaded] [--json]
                               [--keep FOLDER]

For each job: it runs traced, and the verdict's first wall must be the file's. Where the wall is a
stage, the job runs under a probe, whose interval has to be sharp and hold the computed share; else
the evidence must be exactly what the trainer's own ledger says. Then the recommended fix (the one
that takes the cause away, as the file's [without] does, where there is one with a prediction; else
the verdict's first that has a setting and a prediction) is applied in turns with the job as it is:
the measured gain must lie inside the predicted range, which may be at most ±10 points wide. Gains
are shares of what a step (or a useful, fresh token) costs.

`--loaded` does so while other work keeps all cores busy. `--keep` leaves the runs in a folder; what
is there already and ended well is judged as it is, and not run again: after an interruption, and
when the verdict has changed but the jobs have not.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import rltrace
from benchmarks.probing import STAGE_OF, probe_wall
from benchmarks.walls import FILES, ROOT, Wall, ended_well
from rltrace.testing.inside.analysis import CONFIRMED, Estimate, Fix, Summary, Trial, summarize
from rltrace.testing.inside.run import change_of_fix, experiment
from rltrace.testing.inside.trace import RltraceError

RUN_LIMIT_SECONDS = 600
LEAST_STEPS = 16
"""Of a job whose figures are compared: what one step differs from another is then known well."""

STEPS = {"sparse-reward": 256}
"""Where more are needed: one group in nine has a signal, only these count, and all pairs draw the
same samples, so more pairs do not help."""

WIDEST = 0.10
"""Half the width of a predicted range, as a share of a step."""

EXACT = 1e-6


@dataclass(frozen=True)
class Evidence:
    """What stands for the wall: the probe's interval, or what the ledger confirms."""

    says: str
    holds: bool


@dataclass(frozen=True)
class Row:
    """A wall and what came of it. `found` is None where no fix could be predicted or tried; `why`
    says so."""

    name: str
    wall: str
    named: str
    evidence: Evidence
    change: str
    found: Trial | None
    why: str

    @property
    def named_right(self) -> bool:
        """Whether the verdict names the file's wall first."""
        return bool(self.named) and self.wall.startswith(self.named)

    @property
    def narrow(self) -> bool:
        """Whether the predicted range is narrow enough to be of use."""
        predicted = _saved(self.found.predicted) if self.found else None
        return predicted is not None and predicted.high - predicted.low <= 2 * WIDEST

    @property
    def gained(self) -> bool:
        """Whether the gain is as predicted."""
        return self.found is not None and self.found.answer == CONFIRMED

    @property
    def holds(self) -> bool:
        """Whether all of it is as it must be."""
        return self.named_right and self.evidence.holds and self.narrow and self.gained


def prove(name: str, pairs: tuple[int, int], folder: Path, say: experiment.Say) -> Row:
    """Runs everything for one wall, the fix in so many pairs of runs, or in up to so many where
    they do not tell. Errors: `ClickException` where a job fails."""
    wall = Wall.of(FILES / f"{name}.toml")
    say(f"{name}: traced run")
    run, books = folder / "run", folder / "ledger.json"
    steps = max(STEPS.get(name, LEAST_STEPS), int(wall.job["steps"]))
    if not ended_well(run):
        _wrap(run, "--config", str(wall.path), "--steps", str(steps), "--ledger", str(books))
    summary = summarize(rltrace.open_run(run))
    first = summary.verdict.first
    named = first.name if first else summary.verdict.because
    say(f"{name}: {named}")
    evidence = _evidence(name, summary, json.loads(books.read_text()), folder)
    say(f"{name}: {evidence.says}")
    fix = recommended(summary.verdict.fixes, wall.without)
    if fix is None:
        why = "; ".join(summary.verdict.alarms) or "no fix has a setting and a prediction"
        return Row(name, wall.wall, named, evidence, "", None, why)
    change = change_of_fix([fix], 1)
    say(f"{name}: {change.name}")
    try:
        least, most = pairs
        where = folder / "experiment"
        plan = experiment.plan(rltrace.open_run(run), change, least, where, most, resume=True)
        found = experiment.carry_out(plan, lambda line: say(f"{name}: {line}"))
    except RltraceError as error:
        return Row(name, wall.wall, named, evidence, change.name, None, str(error))
    return Row(name, wall.wall, named, evidence, change.name, found, found.because)


def _failed(name: str, why: str) -> Row:
    wall = Wall.of(FILES / f"{name}.toml").wall
    return Row(name, wall, "", Evidence("the job failed", False), "", None, why)


def recommended(fixes: Sequence[Fix], without: Mapping[str, Any]) -> Fix | None:
    """The fix to try: with a setting and a prediction; that which takes the cause away first."""
    able = [fix for fix in fixes if fix.setting and fix.goodput_gain is not None]
    cure = [fix for fix in able if without.get(fix.setting) == fix.value]
    return next(iter([*cure, *able]), None)


def _wrap(run: Path, *job: str) -> None:
    wrap = [sys.executable, "-m", "rltrace", "wrap", "--out", str(run), "--"]
    done = subprocess.run(
        [*wrap, sys.executable, str(ROOT / "examples" / "train.py"), *job],
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise click.ClickException(done.stderr)


def _evidence(name: str, summary: Summary, books: Mapping[str, Any], folder: Path) -> Evidence:
    if name in STAGE_OF:
        found = probe_wall(name, out=folder / "probed")
        part, share = found.stage.stage_exposed_share, found.stage.share
        says = (
            f"feels {part.value:.2f} ± {part.half_width:.2f} of a delay; share {share.value:.2f} ± "
            f"{share.half_width:.2f}, computed {found.stage.computed_share:.2f}"
        )
        return Evidence(says, found.holds)
    return EXACTLY[name](summary, books)


def _records(books: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*books["steps"], *([books["after"]] if books.get("after") else [])]


def _ess_at_lag(summary: Summary, books: Mapping[str, Any]) -> Evidence:
    """ESS at each lag, from the ledger's sums."""
    true: dict[int, list[float]] = {}
    for record in _records(books):
        for lag, sums in record["ratios"].items():
            row = true.setdefault(int(lag), [0.0, 0.0, 0.0])
            for place, field in enumerate(("tokens", "sum_w", "sum_w_squared")):
                row[place] += sums[field]
    shares = {lag: w * w / (n * square) for lag, (n, w, square) in true.items() if square}
    told = {point.lag: point.ess_share.value for point in summary.freshness.curve}
    exact = shares.keys() == told.keys() and all(
        math.isclose(told[lag], share, rel_tol=EXACT) for lag, share in shares.items()
    )
    last = max((lag for lag in told if lag is not None), default=0)
    says = f"ESS at {len(told)} lags, {told.get(last, math.nan):.2f} at lag {last}"
    return Evidence(f"{says}{', exact' if exact else ', NOT as in the ledger'}", exact)


def _groups_with_signal(summary: Summary, books: Mapping[str, Any]) -> Evidence:
    records = _records(books)
    true = (sum(r["groups"] for r in records), sum(r["groups_with_signal"] for r in records))
    signal = summary.signal
    told = (signal.groups, signal.with_signal) if signal else (0, 0)
    says = f"{told[1]} of {told[0]} groups with a signal"
    return Evidence(f"{says}{', exact' if told == true else f', ledger {true}'}", told == true)


def _ids_captured(summary: Summary, books: Mapping[str, Any]) -> Evidence:
    """With `retokenize` no trajectory keeps its ids, without it each does."""
    true = 0.0 if books["config"]["retokenize"] else 1.0
    wall = next(w for w in summary.verdict.walls if w.name == "token fidelity")
    told = [f.value for f in wall.evidence if f.name == "trajectories with the server's token ids"]
    exact = told == [true]
    says = f"{100 * told[0]:.0f} % with token ids" if told else "nothing said of token ids"
    return Evidence(f"{says}{', exact' if exact else ', NOT as in the ledger'}", exact)


EXACTLY = {
    "freshness": _ess_at_lag,
    "sparse-reward": _groups_with_signal,
    "observability": _ids_captured,
}
"""How the evidence of the walls that are no stages is held to the ledger."""

NAMES = (*STAGE_OF, *EXACTLY)


@contextmanager
def load(on: bool) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keeps all cores busy with other work."""
    spin = [sys.executable, "-c", "while True: sum(range(10_000))"]
    others = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)] if on else []
    try:
        yield others
    finally:
        for other in others:
            other.kill()
            other.wait()


def show(rows: Sequence[Row], console: Console, loaded: bool) -> None:
    """The table for people."""
    table = Table(title="The verdict against the truth" + (", all cores loaded" if loaded else ""))
    for heading in ("wall", "named", "probe or ledger", "predicted", "measured", "fix"):
        table.add_column(heading)
    for row in rows:
        table.add_row(
            row.name,
            _marked(row.named, row.named_right),
            _marked(row.evidence.says, row.evidence.holds),
            _marked(_predicted(row), row.narrow),
            _marked(_measured(row), row.gained),
            row.change or row.why,
        )
    console.print(table)
    console.print(f"{sum(row.holds for row in rows)} of {len(rows)} rows hold in all columns")


def _saved(gain: Any) -> Estimate | None:
    """The part of a step's time that a gain in speed saves."""
    return Estimate(*(1 - 1 / x for x in (gain.low, gain.value, gain.high))) if gain else None


def _marked(text: str, holds: bool) -> str:
    return text if holds else f"[red]✗ {text}[/]"


def _predicted(row: Row) -> str:
    saved = _saved(row.found.predicted) if row.found else None
    return "–" if saved is None else f"{100 * saved.low:.0f} to {100 * saved.high:.0f} %"


def _measured(row: Row) -> str:
    if row.found is None:
        return "–"
    saved = _saved(row.found.gain)
    assert saved is not None
    return f"{100 * saved.value:.0f} % ({100 * saved.low:.0f} to {100 * saved.high:.0f})"


def _plain(row: Row) -> dict[str, Any]:
    saved = _saved(row.found.gain) if row.found else None
    predicted = _saved(row.found.predicted) if row.found else None
    return {
        "name": row.name,
        "wall": row.wall,
        "named": row.named,
        "named_right": row.named_right,
        "evidence": dataclasses.asdict(row.evidence),
        "change": row.change,
        "predicted_saved": predicted and dataclasses.asdict(predicted),
        "measured_saved": saved and dataclasses.asdict(saved),
        "answer": row.found.answer if row.found else "not tried",
        "because": row.why,
        "holds": row.holds,
    }


@click.command()
@click.option("--only", "names", multiple=True, type=click.Choice(NAMES), help="Repeatable.")
@click.option("--pairs", default=3, show_default=True, type=click.IntRange(min=2))
@click.option("--up-to", "most", default=9, show_default=True, help="Pairs, while none can tell.")
@click.option("--loaded", is_flag=True, help="While other work keeps all cores busy.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Leave the runs here; take what is there."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(
    names: tuple[str, ...], pairs: int, most: int, loaded: bool, keep: Path | None, as_json: bool
) -> None:
    """The table wall / named / probe / predicted / measured; exits 1 where a row does not hold."""
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    with tempfile.TemporaryDirectory() as folder, load(loaded):
        where = keep or Path(folder)
        rows = []
        for name in names or NAMES:
            place = where / (f"{name}-loaded" if loaded else name)
            place.mkdir(parents=True, exist_ok=True)
            try:
                row = prove(name, (pairs, most), place, lambda line: click.echo(line, err=True))
            except (click.ClickException, subprocess.TimeoutExpired) as error:
                row = _failed(name, str(error))  # an hour's other rows are worth keeping
            rows.append(row)
    if as_json:
        click.echo(json.dumps([_plain(row) for row in rows], indent=1))
    else:
        show(rows, Console(width=150), loaded)
    sys.exit(0 if all(row.holds for row in rows) else 1)


if __name__ == "__main__":
    main()
